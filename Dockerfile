# ganherd on a CPU:
#   docker build -t ganherd .
#   docker run --rm -v "$PWD:/workspace" ganherd train --run runs/digits
FROM python:3.11-slim

COPY pyproject.toml constraints.txt README.md LICENSE /src/
COPY src /src/src
RUN pip install --no-cache-dir --extra-index-url https://download.pytorch.org/whl/cpu -c /src/constraints.txt /src

ENV GANHERD_CACHE=/workspace/.cache/ganherd
WORKDIR /workspace
ENTRYPOINT ["ganherd"]
CMD ["--help"]
