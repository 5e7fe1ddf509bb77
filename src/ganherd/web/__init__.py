"""What pages share, the live page and reports: facts about runs as JSON, and the browser's modules in static/."""
