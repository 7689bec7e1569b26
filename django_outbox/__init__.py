"""A transactional outbox, durable timers and recurring schedules for Django on PostgreSQL.

from django_outbox import outbox

with transaction.atomic():
    order.save()
    outbox.publish({"order_id": order.pk}, queue="orders")
"""

__version__ = "0.1.0"
