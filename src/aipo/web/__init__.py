"""The web app: `session` restores and reports without knowing of any page, `page` lays it out, `server` serves it."""
