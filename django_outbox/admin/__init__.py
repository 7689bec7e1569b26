"""The pages of the Django admin, one module each."""

from . import dead_letters as dead_letters
from . import messages as messages
from . import schedules as schedules
from . import workers as workers
from .trail import OutboxTrailInline as OutboxTrailInline
