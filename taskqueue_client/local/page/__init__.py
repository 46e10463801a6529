"""A web page that shows what the local queue does, and lets a developer act on it."""

from .page import Page as Page
from .page import PageParts as PageParts
