"""The shop's one form."""

from __future__ import annotations

from django import forms

from example_project.shop.models import Customer, Product


class OrderForm(forms.Form):
    """An order; its quantity may be 0, which is the mistake that the example lives on."""

    customer = forms.ModelChoiceField(Customer.objects.order_by("name"), empty_label=None)
    product = forms.ModelChoiceField(Product.objects.order_by("name"), empty_label=None)
    quantity = forms.IntegerField(
        min_value=0, max_value=99, initial=1, help_text="0 gets stuck: see what happens to it."
    )
