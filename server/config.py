"""Every knob of the server: typed, bounded, documented, with a default that serves.

Values come from a TOML file, from ``FIRSTTOKEN_*`` and from flags; ``server.config_sources`` reads the three. Bounds of one
knob stand on its field; what two knobs must keep to each other stands in :meth:`Config.check_together`, and nowhere else.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from server.config_ports import LOOPBACK, AccessConfig, Bytes, GrpcConfig, HttpConfig, Seconds, Section, TlsConfig


class EngineConfig(Section):
    directory: str = "engine-cache/smollm2-gguf"
    """What `firsttoken build` made, or "simulated:PROFILE" for an engine that only pretends."""
    kv_bytes: Bytes = 0
    """Memory for the KV cache, in bytes. 0: a quarter of what is available at start, at most 1 GiB; on a GPU, what the bill leaves of each."""
    threads: Annotated[int, Field(ge=0, le=1024)] = 0
    """Threads of the embedded engine. 0: one per physical core."""
    stuck_after: Annotated[Seconds, Field(gt=0)] = 60.0
    """A step, or a silence between steps, longer than this many seconds means a hung engine: the server ends what runs and exits."""
    preflight: Literal["refuse", "warn"] = "refuse"
    """What a TensorRT-LLM engine that does not fit this machine leads to: no start, or warnings."""
    check_hashes: bool = True
    """Compare every byte of a TensorRT-LLM engine with its manifest before it is loaded; reading it fills the page cache."""
    adapters: str = ""
    """Directory of a TensorRT-LLM engine's LoRA adapters: one directory each, named as requests name it. Empty: none."""
    kv_events: Annotated[int, Field(ge=0, le=1_000_000)] = 16_384
    """Changes of the KV cache that TensorRT-LLM's executor keeps until they are read, ten times a second: cached blocks and evictions are
    told by them. 0: not told."""
    rank_start_timeout: Annotated[Seconds, Field(gt=0)] = 1800.0
    """Seconds that the ranks of a TensorRT-LLM engine have to load their weights; then the start fails and says which did not."""


class SchedulerConfig(Section):
    max_sequences: Annotated[int, Field(ge=1, le=4096)] = 64
    """Sequences that run at once, at most; more wait. More seats mean more throughput and slower steps."""
    step_tokens: Annotated[int, Field(ge=1, le=1_048_576)] = 512
    """New tokens of one step, at most. Larger steps finish prompts sooner and stretch the gaps of running streams."""
    budget: Literal["adaptive", "fixed"] = "adaptive"
    """adaptive: prompts get as much of a step as itl_target allows, by a model of this machine's steps; fixed: all of step_tokens."""
    itl_target: Annotated[Seconds, Field(gt=0, le=60)] = 0.05
    """Seconds that a step may take, prompts included, while others stream."""
    itl_stretch: Annotated[float, Field(ge=1, le=100)] = 2.0
    """Where that is less than this many times the step without prompts, so long may it take: or new prompts would starve."""
    itl_limit: Annotated[Seconds, Field(gt=0, le=60)] = 0.3
    """Up to so many seconds it may take where the prompts ahead would else not be through within half of interactive_target."""
    idle_step: Annotated[Seconds, Field(gt=0, le=60)] = 1.0
    """Seconds that a step may take while nobody streams: who comes meanwhile waits for its end."""
    order: Literal["aged", "arrival"] = "aged"
    """aged: within a tenant, by when the first token is due and how much work it is; arrival: first come, first served."""
    length_weight: Annotated[float, Field(ge=0, le=1000)] = 2.0
    """Seconds of later arrival that a second less of expected work makes up for; bounds how long anybody is overtaken."""
    interactive_target: Annotated[Seconds, Field(gt=0)] = 0.5
    """Seconds after arrival at which an interactive request's first token is due: a place in the order, not a promise."""
    standard_target: Annotated[Seconds, Field(gt=0)] = 2.0
    """The same for the standard class."""
    batch_target: Annotated[Seconds, Field(gt=0)] = 60.0
    """The same for the batch class."""
    target_per_token: Seconds = 0.0
    """So many seconds later for each prompt token that must be computed."""
    length_quantile: Annotated[float, Field(gt=0, lt=1)] = 0.5
    """An answer is expected to be as long as this share of the tenant's earlier ones at most were."""
    standard_share: Annotated[float, Field(ge=0, lt=1)] = 0.2
    """Minimum share of the tokens computed that the standard class gets while it has work, whatever else waits."""
    batch_share: Annotated[float, Field(ge=0, lt=1)] = 0.05
    """The same for the batch class."""
    fair_tenants: bool = True
    """Within a class, serve tenants by what they were served so far; false: all tenants queue together."""
    tenant_burst: Annotated[float, Field(ge=0)] = 4096.0
    """Tokens (output counting double) by which a tenant that comes back after a pause may go before its turn."""
    max_preemptions: Annotated[int, Field(ge=0, le=1000)] = 2
    """Times that a running request gives way to a higher class."""
    preemptions_per_second: Annotated[float, Field(ge=0, le=10_000)] = 10.0
    """Of all requests together; what gives way may have to be computed again. 0: nobody gives way."""
    min_prefill_tokens: Annotated[int, Field(ge=1, le=1_048_576)] = 16
    """What prompts get of a step even when running streams use it up, so that they always move."""
    max_partial_prefills: Annotated[int, Field(ge=1, le=4096)] = 4
    """Prompts that may be partly computed at the same time."""
    long_prompt_tokens: Annotated[int, Field(ge=0)] = 2048
    """A prompt with more tokens than this to go takes only its share of a step while others wait, so that short ones pass it."""
    min_copy_tokens: Annotated[int, Field(ge=1)] = 4
    """Least number of tokens for which a partly matching block of the prefix cache is copied."""
    max_score_tokens: Annotated[int, Field(ge=1)] = 128
    """Prompt tokens of one request whose log-probabilities one step computes. Each takes a row of logits as long as the vocabulary."""
    max_prefix_waits: Annotated[int, Field(ge=0)] = 4
    """Steps in a row that a prompt waits for another one that computes the same prefix."""
    watermark: Annotated[float, Field(ge=0, lt=1)] = 0.01
    """Share of the KV blocks that stays free for running sequences when a new one is seated."""
    prefix_cache: bool = True
    """Reuse computed prefixes. false: every prompt, and each of a request's n outputs, is computed anew."""
    eviction: Literal["reuse", "cost", "lru"] = "reuse"
    """Which cached block goes first. reuse: the one used longest ago, but what was reused often stays longer; cost: so does what costs more
    to compute again; lru: neither."""
    max_retention: Annotated[Seconds, Field(le=30 * 86_400)] = 3600.0
    """Seconds after which a request's retention priority falls back to the usual one, whatever it asked for: so long can one tenant crowd
    others out of the cache."""
    batch_size: Annotated[int, Field(ge=1, le=4096)] = 8
    """While others stream, new prompts are held back until so many wait, or until batch_wait is over."""
    batch_wait: Annotated[Seconds, Field(le=10)] = 0.0
    """Seconds that a new prompt may be held back while others stream, so that prompts share steps. 0: not at all."""


class AdmissionConfig(Section):
    max_waiting_requests: Annotated[int, Field(ge=1)] = 1024
    """Requests that may wait for a seat; more are refused with RESOURCE_EXHAUSTED."""
    max_waiting_tokens: Annotated[int, Field(ge=1)] = 1_000_000
    """Prompt tokens that may wait to be computed; more are refused with RESOURCE_EXHAUSTED."""
    max_tokenizing_bytes: Annotated[Bytes, Field(ge=4096)] = 64 * 1024 * 1024
    """Prompt bytes that may wait for the tokenizer; more are refused before anything is computed."""
    retry_after: Annotated[Seconds, Field(gt=0, le=3600)] = 1.0
    """The delay, in seconds, that a refused client is told to wait where nothing better is known."""


class CacheConfig(Section):
    save_path: str = ""
    """File that the prefix cache of a step runner is saved to, and restored from at start, by the same engine on the same kind of
    processor. It holds what prompts said: protect it as you protect them. Empty: nothing leaves the memory."""
    save_bytes: Annotated[Bytes, Field(ge=1)] = 1 << 30
    """Largest file, in bytes; what was used last comes first."""
    save_timeout: Annotated[Seconds, Field(gt=0, le=3600)] = 10.0
    """Seconds that the save at shutdown may take: what there is no time for is left out."""
    save_interval: Seconds = 600.0
    """Seconds between two saves while the server runs, where something new was computed: a server that is killed loses no more. 0: only
    at shutdown."""
    restore_timeout: Annotated[Seconds, Field(gt=0, le=3600)] = 5.0
    """Seconds that restoring may take at start: what there is no time for is left out."""


class LimitsConfig(Section):
    default_max_tokens: Annotated[int, Field(ge=1)] = 256
    """max_tokens of a request that leaves it unset; less where the context has less room."""
    max_stop_strings: Annotated[int, Field(ge=0, le=1024)] = 16
    """Entries of stop.strings."""
    max_stop_string_bytes: Annotated[int, Field(ge=1, le=65536)] = 1024
    """Bytes of one stop string, in UTF-8."""
    max_stop_token_ids: Annotated[int, Field(ge=0, le=4096)] = 64
    """Entries of stop.token_ids."""
    max_cache_salt_bytes: Annotated[int, Field(ge=0, le=65536)] = 256
    """Bytes of cache_salt, in UTF-8."""
    max_outputs: Annotated[int, Field(ge=1, le=1024)] = 16
    """n: outputs of one request. Also bounded by the sequences that run at once."""
    max_top_logprobs: Annotated[int, Field(ge=0, le=1024)] = 20
    """logprobs.top: likeliest tokens reported beside each token."""
    max_logit_biases: Annotated[int, Field(ge=0, le=65536)] = 1024
    """Entries of sampling.logit_bias."""
    max_bad_words: Annotated[int, Field(ge=0, le=4096)] = 64
    """Entries of sampling.bad_words, and of sampling.bad_tokens."""
    max_bad_word_size: Annotated[int, Field(ge=1, le=4096)] = 128
    """Bytes of one bad word; token ids of one entry of bad_tokens."""
    max_guide_bytes: Annotated[Bytes, Field(ge=1, le=16 * 1024 * 1024)] = 256 * 1024
    """Bytes of a guide, in UTF-8."""
    max_request_id_size: Annotated[int, Field(ge=1, le=1024)] = 128
    """Characters of request_id."""
    reader_stall: Annotated[Seconds, Field(gt=0)] = 30.0
    """A client that takes nothing off its stream for this many seconds, while there is something to take, loses it."""


class GuideConfig(Section):
    threads: Annotated[int, Field(ge=1, le=64)] = 2
    """Threads that fill the masks of a step's guided sequences."""
    cache_entries: Annotated[int, Field(ge=1, le=65536)] = 128
    """Compiled guides that are kept, the latest used."""
    max_compiling: Annotated[int, Field(ge=1, le=4096)] = 64
    """Guides that may wait to be compiled, one at a time; more are refused with RESOURCE_EXHAUSTED."""


class TextConfig(Section):
    threads: Annotated[int, Field(ge=1, le=64)] = 2
    """Threads that tokenize, beside the event loop."""


class LifecycleConfig(Section):
    drain_delay: Seconds = 0.0
    """After SIGTERM: seconds between turning not ready and refusing requests, so that load balancers look away first."""
    drain_grace: Seconds = 30.0
    """After that: seconds that running requests have to finish; what still runs is then ended with UNAVAILABLE."""
    warm_up: bool = True
    """Generate once through the real path before turning ready."""
    warm_up_timeout: Annotated[Seconds, Field(gt=0)] = 120.0
    """Seconds after which a warm-up that has not finished counts as failed."""
    warm_up_tokens: Annotated[int, Field(ge=2, le=4096)] = 8
    """Tokens of that generation."""
    uvloop: bool = True
    """Run on uvloop where it is installed: a sixth less processor time of the event loop per token. false: on asyncio's own loop."""
    switch_interval: Annotated[float, Field(gt=0, le=0.1)] = 0.0005
    """Python's thread switch interval, in seconds: how long the engine thread can keep the event loop from running (Python: 0.005)."""


class TelemetryConfig(Section):
    log_format: Literal["auto", "json", "console"] = "auto"
    """auto: console on a terminal, json otherwise."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """Least severe events that are logged."""
    recording: str = ""
    """File to record the traffic into: times, lengths and keyed hashes of prefixes, never text. Written anew at each start. Empty: none."""
    crash_directory: str = ""
    """Where a post-mortem is written when the engine dies or hangs: stacks and the last steps, no prompts. Empty: the log only."""
    log_requests: bool = True
    """One line a request, at its end. Prompts and outputs are never logged."""
    client_timeout: Annotated[Seconds, Field(gt=0)] = 600.0
    """Seconds that clients are told to wait for a request at most, until enough of its class have ended; then 3 times their 95th percentile."""
    client_timeout_floor: Annotated[Seconds, Field(gt=0)] = 10.0
    """They are never told less, however short the requests are: the next one may not be."""
    otlp_endpoint: str = ""
    """Collector that traces are sent to by OTLP over gRPC: http://HOST:PORT, or https. Needs firsttoken[otel]. Empty: no traces."""
    trace_share: Annotated[float, Field(ge=0, le=1)] = 0.05
    """Share of the requests that are traced where the caller's traceparent does not decide it."""


class Config(Section):
    """The whole tree. Field order is the order of `--print-config`."""

    engine: EngineConfig = EngineConfig()
    """What is served."""
    grpc: GrpcConfig = GrpcConfig()
    """The gRPC port."""
    tls: TlsConfig = TlsConfig()
    """Encryption of the gRPC port."""
    access: AccessConfig = AccessConfig()
    """Who may call."""
    http: HttpConfig = HttpConfig()
    """The HTTP port, for those who operate the server."""
    scheduler: SchedulerConfig = SchedulerConfig()
    """How requests share the engine."""
    admission: AdmissionConfig = AdmissionConfig()
    """When requests are refused."""
    cache: CacheConfig = CacheConfig()
    """What of the prefix cache outlives the process."""
    limits: LimitsConfig = LimitsConfig()
    """What a request may ask for."""
    guides: GuideConfig = GuideConfig()
    """Structured output."""
    text: TextConfig = TextConfig()
    """Tokenization."""
    lifecycle: LifecycleConfig = LifecycleConfig()
    """Start and end of the server."""
    telemetry: TelemetryConfig = TelemetryConfig()
    """What the server says about itself."""

    @model_validator(mode="after")
    def check_together(self) -> Config:
        """What no field can check alone. Each message names both knobs and both values."""
        grpc, http, scheduler = self.grpc, self.http, self.scheduler
        if scheduler.step_tokens < scheduler.max_sequences:
            raise ValueError(
                f"scheduler.step_tokens ({scheduler.step_tokens}) must be at least scheduler.max_sequences "
                f"({scheduler.max_sequences}): each running sequence needs a token of every step"
            )
        if scheduler.standard_share + scheduler.batch_share >= 1:
            raise ValueError(
                f"scheduler.standard_share ({scheduler.standard_share}) and scheduler.batch_share ({scheduler.batch_share}) "
                "must stay below 1 together"
            )
        if http.enabled and http.port == grpc.port != 0 and http.host == grpc.host:
            raise ValueError(
                f"http.port ({http.port}) and grpc.port ({grpc.port}) must differ on the same host ({grpc.host})"
            )
        if grpc.keepalive_timeout > grpc.keepalive_time:
            raise ValueError(
                f"grpc.keepalive_timeout ({grpc.keepalive_timeout}) must not exceed grpc.keepalive_time ({grpc.keepalive_time})"
            )
        if bool(self.tls.certificate) != bool(self.tls.key):
            raise ValueError(
                f"tls.certificate ({self.tls.certificate!r}) and tls.key ({self.tls.key!r}) must be set together"
            )
        if self.tls.client_ca and not self.tls.certificate:
            raise ValueError(f"tls.client_ca ({self.tls.client_ca!r}) needs tls.certificate ('')")
        return self

    def exposures(self) -> list[str]:
        """What others than this machine can do that nobody may have wanted, a sentence each, to warn about."""
        found = []
        if not self.grpc.host.startswith("unix:") and self.grpc.host not in LOOPBACK:
            where = f"grpc.host={self.grpc.host}: reachable from the network"
            if not self.tls.certificate:
                found.append(
                    f"{where} without encryption: prompts, outputs and tokens can be read on the way (tls.certificate)"
                )
            if not self.access.file and not self.tls.client_ca:
                found.append(f"{where} without authentication: anyone may use it (access.file, tls.client_ca)")
        if self.http.enabled and self.http.remote_metrics and self.http.host not in LOOPBACK:
            found.append(
                f"http.host={self.http.host}: /metrics can be read from the network, unencrypted (http.remote_metrics)"
            )
        return found
