// Shows the next fires of a spec while it is typed. Without it they show when the form is checked.
"use strict";

document.addEventListener("DOMContentLoaded", () => {
  const spec = document.getElementById("id_spec");
  const region = document.getElementById("outbox-fires");
  if (!spec || !region) {
    return;
  }
  let timer;
  let running;

  const show = async () => {
    running?.abort();
    running = new AbortController();
    const query = new URLSearchParams({ spec: spec.value, name: region.dataset.name });
    try {
      const response = await fetch(`${region.dataset.url}?${query}`, {
        credentials: "same-origin",
        signal: running.signal,
      });
      if (!response.ok || response.redirected) {
        throw new Error(response.statusText);
      }
      region.innerHTML = await response.text(); // a template's, escaped there
    } catch (error) {
      if (error.name !== "AbortError") {
        region.textContent = "The next fires cannot be shown now. Saving checks the spec.";
      }
    }
  };

  spec.addEventListener("input", () => {
    clearTimeout(timer);
    timer = setTimeout(show, 300);
  });
});
