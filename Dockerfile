# The web app, on CPUs:
#
#     docker build --tag aipo --build-arg TORCH_INDEX=ADDRESS .
#     docker run --rm --publish 127.0.0.1:7860:7860 aipo
#
# ADDRESS is the index of CPU builds that pytorch.org names for pip; without it the image has several GB of CUDA.
# Then open http://localhost:7860. The app has no log-in: publish it on this machine only, as above, or behind a proxy
# that has one (SECURITY.md).
FROM python:3.12-slim

ARG TORCH_INDEX=

WORKDIR /aipo
COPY constraints.txt ./
RUN python -m pip install --no-cache-dir ${TORCH_INDEX:+--index-url "$TORCH_INDEX"} "$(grep '^torch==' constraints.txt)"
COPY pyproject.toml README.md LICENSE ./
COPY src src
RUN python -m pip install --no-cache-dir --constraint constraints.txt ".[app]"

RUN useradd --create-home aipo
USER aipo
WORKDIR /home/aipo
EXPOSE 7860
HEALTHCHECK --start-period=60s CMD ["python", "-c", "import urllib.request as u; u.urlopen('http://127.0.0.1:7860/', timeout=20)"]
# As Ctrl-C would: the app ends quietly.
STOPSIGNAL SIGINT
# In the container every address has to be listened to; which of them the world sees, --publish says.
CMD ["aipo", "app", "--host", "0.0.0.0", "--port", "7860", "--no-browser"]
