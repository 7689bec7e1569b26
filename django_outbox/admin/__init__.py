"""The pages of the Django admin, one module each."""

from . import messages as messages
from .trail import OutboxTrailInline as OutboxTrailInline
