"""The shop's pages."""

from __future__ import annotations

from django.urls import path

from example_project.shop import views

app_name = "shop"
urlpatterns = [
    path("", views.index, name="index"),
    path("board/", views.board, name="board"),
    path("repair/", views.repair, name="repair"),
]
