"""The report as one HTML page that needs nothing from elsewhere."""

from asfl.results.page.build import Report, chart_library, page, place_for

__all__ = ["Report", "chart_library", "page", "place_for"]
