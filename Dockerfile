# Two targets, the same server in both:
#
#   docker build --target cpu -t firsttoken:cpu .     the embedded engine, on a slim Python
#   docker build --target gpu -t firsttoken:gpu .     TensorRT-LLM, on NVIDIA's release image of the pinned version
#
# Compilers and pip's caches stay in the stages before; what is shipped runs as a user without rights and answers a gRPC health check.

FROM python:3.12-slim-bookworm AS wheel
WORKDIR /source
COPY pyproject.toml README.md LICENSE ./
COPY engines engines
COPY build_scripts build_scripts
COPY server server
COPY firsttoken firsttoken
COPY loadtest loadtest
COPY protos protos
COPY deploy/image deploy/image
RUN sh deploy/image/make_wheel.sh /source /wheel

FROM python:3.12-slim-bookworm AS cpu-environment
COPY --from=wheel /wheel /wheel
COPY deploy/image/install.sh /install.sh
RUN sh /install.sh /wheel /opt/firsttoken

FROM python:3.12-slim-bookworm AS cpu
RUN groupadd --system --gid 10001 firsttoken \
 && useradd --system --uid 10001 --gid firsttoken --create-home firsttoken
COPY --from=cpu-environment /opt/firsttoken /opt/firsttoken
# The rule looks for "TOKEN", which is a part of our name; nothing here is secret.
# hadolint ignore=DL3064
ENV PATH=/opt/firsttoken/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1 \
    FIRSTTOKEN_GRPC__HOST=0.0.0.0 \
    FIRSTTOKEN_HTTP__HOST=0.0.0.0
USER 10001:10001
WORKDIR /home/firsttoken
EXPOSE 50051 8080
# A start that compiles or loads for long is "starting", not "unhealthy".
HEALTHCHECK --interval=5s --timeout=3s --start-period=120s --retries=3 CMD ["python", "-m", "firsttoken.health", "127.0.0.1:50051"]
STOPSIGNAL SIGTERM
ENTRYPOINT ["firsttoken"]
CMD ["serve", "/engine"]

FROM nvcr.io/nvidia/tensorrt-llm/release:1.2.1 AS gpu-environment
COPY --from=wheel /wheel /wheel
COPY deploy/image/install.sh /install.sh
# What NVIDIA's image brings stays as it is: ours goes beside it, and no package of theirs may change its version.
RUN sh /install.sh /wheel /opt/firsttoken --system-site-packages

FROM nvcr.io/nvidia/tensorrt-llm/release:1.2.1 AS gpu
RUN groupadd --system --gid 10001 firsttoken \
 && useradd --system --uid 10001 --gid firsttoken --create-home firsttoken
COPY --from=gpu-environment /opt/firsttoken /opt/firsttoken
# The rule looks for "TOKEN", which is a part of our name; nothing here is secret.
# hadolint ignore=DL3064
ENV PATH=/opt/firsttoken/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1 \
    FIRSTTOKEN_GRPC__HOST=0.0.0.0 \
    FIRSTTOKEN_HTTP__HOST=0.0.0.0
USER 10001:10001
WORKDIR /home/firsttoken
EXPOSE 50051 8080
# Weights of a large engine take minutes to load.
HEALTHCHECK --interval=5s --timeout=3s --start-period=1800s --retries=3 CMD ["python", "-m", "firsttoken.health", "127.0.0.1:50051"]
STOPSIGNAL SIGTERM
ENTRYPOINT ["firsttoken"]
CMD ["serve", "/engine"]
