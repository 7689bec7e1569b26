"""The shop's page: place an order and watch it travel."""

from __future__ import annotations

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_POST, require_safe

from example_project.shop import services
from example_project.shop.board import board as board_context
from example_project.shop.forms import OrderForm


def index(request: HttpRequest) -> HttpResponse:
    form = OrderForm(request.POST or None)
    if form.is_valid():
        order = services.place_order(**form.cleaned_data)
        messages.success(request, f"Placed {order}.")
        return redirect("shop:index")
    return render(request, "shop/index.html", {"form": form, **board_context()})


@require_safe
def board(request: HttpRequest) -> HttpResponse:
    """Return the part of the page that it fetches anew every second."""
    return render(request, "shop/_board.html", board_context())


@require_POST
def repair(request: HttpRequest) -> HttpResponse:
    """Correct the orders of nothing, then replay what they left behind."""
    corrected = services.correct_quantities()
    replayed = services.replay_orders()
    messages.success(request, f"Corrected {corrected} and replayed {replayed}.")
    return redirect("shop:index")
