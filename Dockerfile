# The web app, on CPUs:
#
#     docker build --tag aipo .
#     docker run --rm --publish 127.0.0.1:7860:7860 aipo
#
# Then open http://localhost:7860. The app has no log-in: publish it on this machine only, as above, or behind a proxy
# that has one (SECURITY.md).
FROM python:3.12-slim

# Where pip finds the CPU build of torch, which is a tenth of the one that package indexes have.
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu

WORKDIR /aipo
COPY constraints.txt ./
RUN python -m pip install --no-cache-dir --index-url "$TORCH_INDEX" "$(grep '^torch==' constraints.txt)"
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
