/* Keeps the overview fresh: fetches this page again, and changes what has changed in place, so that
   scroll, focus and everything else that the reader has set stay as they are. */
"use strict";
(() => {
    const EVERY = 10_000;
    const GIVE_UP_AFTER = 10_000;
    const overview = document.getElementById("outbox-overview");
    const age = document.getElementById("outbox-age");
    const refusal = document.getElementById("outbox-refusal");
    let refreshedAt = performance.now();
    let triedAt = refreshedAt;
    let isFetching = false;

    const keyOf = (node) => (node.nodeType === Node.ELEMENT_NODE && node.id) || null;

    const isAlike = (one, other) =>
        one.nodeType === other.nodeType && one.nodeName === other.nodeName && keyOf(one) === keyOf(other);

    function updateAttributes(old, fresh) {
        for (const { name, value } of fresh.attributes) {
            if (old.getAttribute(name) !== value) old.setAttribute(name, value);
        }
        for (const { name } of [...old.attributes]) {
            if (!fresh.hasAttribute(name)) old.removeAttribute(name);
        }
    }

    // Elements with an id are found again by it, all others by where they stand. What stays is not
    // moved, since an element that is taken out and put back loses focus.
    function updateChildren(old, fresh) {
        const wanted = new Set([...fresh.childNodes].map(keyOf).filter(Boolean));
        for (const node of [...old.childNodes]) {
            if (keyOf(node) && !wanted.has(keyOf(node))) node.remove();
        }
        let here = old.firstChild;
        for (const node of [...fresh.childNodes]) {
            const known = keyOf(node) && [...old.children].find((child) => child.id === node.id);
            if (here && isAlike(here, node)) {
                const next = here.nextSibling;
                update(here, node);
                here = next;
            } else if (known && isAlike(known, node)) {
                while (here && here !== known && !keyOf(here)) {
                    const next = here.nextSibling;
                    here.remove();
                    here = next;
                }
                if (here === known) here = known.nextSibling;
                else old.insertBefore(known, here);
                update(known, node);
            } else {
                old.insertBefore(document.importNode(node, true), here);
            }
        }
        while (here) {
            const next = here.nextSibling;
            here.remove();
            here = next;
        }
    }

    function update(old, fresh) {
        if (old.isEqualNode(fresh)) return;
        if (old.nodeType !== Node.ELEMENT_NODE) {
            old.nodeValue = fresh.nodeValue;
            return;
        }
        updateAttributes(old, fresh);
        updateChildren(old, fresh);
    }

    function show(fresh) {
        const focused = overview.contains(document.activeElement) ? document.activeElement : null;
        update(overview, fresh);
        if (focused && !document.activeElement?.isSameNode(focused)) {
            const again = focused.id ? document.getElementById(focused.id) : null;
            (again || overview).focus({ preventScroll: true });
        }
    }

    function isReading() {
        const selection = document.getSelection();
        return selection && !selection.isCollapsed && overview.contains(selection.anchorNode);
    }

    async function fetchOverview() {
        const response = await fetch(location.href, {
            credentials: "same-origin",
            cache: "no-store",
            signal: AbortSignal.timeout(GIVE_UP_AFTER),
        });
        if (response.redirected) throw new Error("you have been logged out");
        if (!response.ok) throw new Error(`the site answered ${response.status}`);
        const page = new DOMParser().parseFromString(await response.text(), "text/html");
        const fresh = page.getElementById("outbox-overview");
        if (!fresh) throw new Error("you may not view it any more");
        return fresh;
    }

    function refuse(why) {
        const text = why ? `Could not be refreshed: ${why}.` : "";
        if (refusal.textContent !== text) refusal.textContent = text;
    }

    function reason(error) {
        if (error.name === "TimeoutError") return "the site does not answer";
        return error instanceof TypeError ? "the site cannot be reached" : error.message;
    }

    async function refresh() {
        if (isFetching) return;
        isFetching = true;
        triedAt = performance.now();
        try {
            const fresh = await fetchOverview();
            if (isReading()) return;
            show(fresh);
            refreshedAt = performance.now();
            refuse("");
        } catch (error) {
            refuse(reason(error));
        } finally {
            isFetching = false;
            tellAge();
        }
    }

    function tellAge() {
        const seconds = Math.round((performance.now() - refreshedAt) / 1000);
        const since = seconds < 90 ? `${seconds} s` : `${Math.round(seconds / 60)} min`;
        age.textContent = `Updated ${since} ago${isReading() ? ", paused while text is selected" : ""}`;
    }

    function look() {
        if (document.hidden) return;
        tellAge();
        if (performance.now() - triedAt >= EVERY && !isReading()) refresh();
    }

    document.getElementById("outbox-refresh-now").addEventListener("click", (event) => {
        event.preventDefault();
        refresh();
    });
    document.addEventListener("visibilitychange", look);
    setInterval(look, 1000);
})();
