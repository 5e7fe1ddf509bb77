"""Provide what the live page and reports share: facts about runs as JSON, and the JavaScript modules in static/."""
