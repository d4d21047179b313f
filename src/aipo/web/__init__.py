"""The web app.

What is computed:
    session      what all users share, and one restoration as a stream of messages, without knowing of any page
    jobs         who is computing, and who waits

What is on the page:
    controls     what is there to see
    handlers     what happens when a control is used
    page         which handler belongs to which control

Who may come in:
    connections  not too many, and none that is kept open for nothing
    guard        lets in what the page asks for: known pages (visitors), their events (events), uploads (pictures)
    server       puts all of it together and serves it
"""
