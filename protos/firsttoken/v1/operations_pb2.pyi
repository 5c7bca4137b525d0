import datetime

from protos.firsttoken.v1 import generation_pb2 as _generation_pb2
from google.protobuf import duration_pb2 as _duration_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class WarmPrefixRequest(_message.Message):
    __slots__ = ("prompt", "cache_salt", "tenant")
    PROMPT_FIELD_NUMBER: _ClassVar[int]
    CACHE_SALT_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    prompt: _generation_pb2.Prompt
    cache_salt: str
    tenant: str
    def __init__(self, prompt: _Optional[_Union[_generation_pb2.Prompt, _Mapping]] = ..., cache_salt: _Optional[str] = ..., tenant: _Optional[str] = ...) -> None: ...

class WarmPrefixResponse(_message.Message):
    __slots__ = ("prompt_tokens", "cached_tokens")
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    prompt_tokens: int
    cached_tokens: int
    def __init__(self, prompt_tokens: _Optional[int] = ..., cached_tokens: _Optional[int] = ...) -> None: ...

class PinPrefixRequest(_message.Message):
    __slots__ = ("prompt", "cache_salt", "tenant", "prefix", "time_to_live")
    PROMPT_FIELD_NUMBER: _ClassVar[int]
    CACHE_SALT_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    PREFIX_FIELD_NUMBER: _ClassVar[int]
    TIME_TO_LIVE_FIELD_NUMBER: _ClassVar[int]
    prompt: _generation_pb2.Prompt
    cache_salt: str
    tenant: str
    prefix: str
    time_to_live: _duration_pb2.Duration
    def __init__(self, prompt: _Optional[_Union[_generation_pb2.Prompt, _Mapping]] = ..., cache_salt: _Optional[str] = ..., tenant: _Optional[str] = ..., prefix: _Optional[str] = ..., time_to_live: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class PinPrefixResponse(_message.Message):
    __slots__ = ("prefix",)
    PREFIX_FIELD_NUMBER: _ClassVar[int]
    prefix: CachedPrefix
    def __init__(self, prefix: _Optional[_Union[CachedPrefix, _Mapping]] = ...) -> None: ...

class UnpinPrefixRequest(_message.Message):
    __slots__ = ("prefix",)
    PREFIX_FIELD_NUMBER: _ClassVar[int]
    prefix: str
    def __init__(self, prefix: _Optional[str] = ...) -> None: ...

class UnpinPrefixResponse(_message.Message):
    __slots__ = ("unpinned",)
    UNPINNED_FIELD_NUMBER: _ClassVar[int]
    unpinned: bool
    def __init__(self, unpinned: _Optional[bool] = ...) -> None: ...

class ListPrefixesRequest(_message.Message):
    __slots__ = ("most",)
    MOST_FIELD_NUMBER: _ClassVar[int]
    most: int
    def __init__(self, most: _Optional[int] = ...) -> None: ...

class ListPrefixesResponse(_message.Message):
    __slots__ = ("prefixes",)
    PREFIXES_FIELD_NUMBER: _ClassVar[int]
    prefixes: _containers.RepeatedCompositeFieldContainer[CachedPrefix]
    def __init__(self, prefixes: _Optional[_Iterable[_Union[CachedPrefix, _Mapping]]] = ...) -> None: ...

class CachedPrefix(_message.Message):
    __slots__ = ("name", "tokens", "blocks", "bytes", "reuses", "in_use", "pinned_for")
    NAME_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    REUSES_FIELD_NUMBER: _ClassVar[int]
    IN_USE_FIELD_NUMBER: _ClassVar[int]
    PINNED_FOR_FIELD_NUMBER: _ClassVar[int]
    name: str
    tokens: int
    blocks: int
    bytes: int
    reuses: int
    in_use: bool
    pinned_for: _duration_pb2.Duration
    def __init__(self, name: _Optional[str] = ..., tokens: _Optional[int] = ..., blocks: _Optional[int] = ..., bytes: _Optional[int] = ..., reuses: _Optional[int] = ..., in_use: _Optional[bool] = ..., pinned_for: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class ClearCacheRequest(_message.Message):
    __slots__ = ("pinned",)
    PINNED_FIELD_NUMBER: _ClassVar[int]
    pinned: bool
    def __init__(self, pinned: _Optional[bool] = ...) -> None: ...

class ClearCacheResponse(_message.Message):
    __slots__ = ("forgotten_blocks", "kept_blocks")
    FORGOTTEN_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    KEPT_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    forgotten_blocks: int
    kept_blocks: int
    def __init__(self, forgotten_blocks: _Optional[int] = ..., kept_blocks: _Optional[int] = ...) -> None: ...

class AbortRequest(_message.Message):
    __slots__ = ("request_id",)
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    def __init__(self, request_id: _Optional[str] = ...) -> None: ...

class AbortResponse(_message.Message):
    __slots__ = ("aborted",)
    ABORTED_FIELD_NUMBER: _ClassVar[int]
    aborted: bool
    def __init__(self, aborted: _Optional[bool] = ...) -> None: ...

class GetServerInfoRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetServerInfoResponse(_message.Message):
    __slots__ = ("version", "engine", "model", "fingerprint", "limits", "capabilities", "client_timeouts")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    ENGINE_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    LIMITS_FIELD_NUMBER: _ClassVar[int]
    CAPABILITIES_FIELD_NUMBER: _ClassVar[int]
    CLIENT_TIMEOUTS_FIELD_NUMBER: _ClassVar[int]
    version: str
    engine: str
    model: str
    fingerprint: str
    limits: Limits
    capabilities: EngineCapabilities
    client_timeouts: ClientTimeouts
    def __init__(self, version: _Optional[str] = ..., engine: _Optional[str] = ..., model: _Optional[str] = ..., fingerprint: _Optional[str] = ..., limits: _Optional[_Union[Limits, _Mapping]] = ..., capabilities: _Optional[_Union[EngineCapabilities, _Mapping]] = ..., client_timeouts: _Optional[_Union[ClientTimeouts, _Mapping]] = ...) -> None: ...

class ClientTimeouts(_message.Message):
    __slots__ = ("interactive", "standard", "batch")
    INTERACTIVE_FIELD_NUMBER: _ClassVar[int]
    STANDARD_FIELD_NUMBER: _ClassVar[int]
    BATCH_FIELD_NUMBER: _ClassVar[int]
    interactive: float
    standard: float
    batch: float
    def __init__(self, interactive: _Optional[float] = ..., standard: _Optional[float] = ..., batch: _Optional[float] = ...) -> None: ...

class Limits(_message.Message):
    __slots__ = ("vocab_size", "max_context", "max_prompt_tokens", "default_max_tokens", "max_message_bytes", "max_stop_strings", "max_stop_string_bytes", "max_stop_token_ids", "max_cache_salt_bytes", "max_sequences", "max_waiting_requests", "max_waiting_tokens", "block_size", "max_outputs", "max_top_logprobs", "max_logit_biases", "max_bad_words", "max_bad_word_size", "max_guide_bytes", "max_request_id_size")
    VOCAB_SIZE_FIELD_NUMBER: _ClassVar[int]
    MAX_CONTEXT_FIELD_NUMBER: _ClassVar[int]
    MAX_PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    DEFAULT_MAX_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MAX_MESSAGE_BYTES_FIELD_NUMBER: _ClassVar[int]
    MAX_STOP_STRINGS_FIELD_NUMBER: _ClassVar[int]
    MAX_STOP_STRING_BYTES_FIELD_NUMBER: _ClassVar[int]
    MAX_STOP_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    MAX_CACHE_SALT_BYTES_FIELD_NUMBER: _ClassVar[int]
    MAX_SEQUENCES_FIELD_NUMBER: _ClassVar[int]
    MAX_WAITING_REQUESTS_FIELD_NUMBER: _ClassVar[int]
    MAX_WAITING_TOKENS_FIELD_NUMBER: _ClassVar[int]
    BLOCK_SIZE_FIELD_NUMBER: _ClassVar[int]
    MAX_OUTPUTS_FIELD_NUMBER: _ClassVar[int]
    MAX_TOP_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    MAX_LOGIT_BIASES_FIELD_NUMBER: _ClassVar[int]
    MAX_BAD_WORDS_FIELD_NUMBER: _ClassVar[int]
    MAX_BAD_WORD_SIZE_FIELD_NUMBER: _ClassVar[int]
    MAX_GUIDE_BYTES_FIELD_NUMBER: _ClassVar[int]
    MAX_REQUEST_ID_SIZE_FIELD_NUMBER: _ClassVar[int]
    vocab_size: int
    max_context: int
    max_prompt_tokens: int
    default_max_tokens: int
    max_message_bytes: int
    max_stop_strings: int
    max_stop_string_bytes: int
    max_stop_token_ids: int
    max_cache_salt_bytes: int
    max_sequences: int
    max_waiting_requests: int
    max_waiting_tokens: int
    block_size: int
    max_outputs: int
    max_top_logprobs: int
    max_logit_biases: int
    max_bad_words: int
    max_bad_word_size: int
    max_guide_bytes: int
    max_request_id_size: int
    def __init__(self, vocab_size: _Optional[int] = ..., max_context: _Optional[int] = ..., max_prompt_tokens: _Optional[int] = ..., default_max_tokens: _Optional[int] = ..., max_message_bytes: _Optional[int] = ..., max_stop_strings: _Optional[int] = ..., max_stop_string_bytes: _Optional[int] = ..., max_stop_token_ids: _Optional[int] = ..., max_cache_salt_bytes: _Optional[int] = ..., max_sequences: _Optional[int] = ..., max_waiting_requests: _Optional[int] = ..., max_waiting_tokens: _Optional[int] = ..., block_size: _Optional[int] = ..., max_outputs: _Optional[int] = ..., max_top_logprobs: _Optional[int] = ..., max_logit_biases: _Optional[int] = ..., max_bad_words: _Optional[int] = ..., max_bad_word_size: _Optional[int] = ..., max_guide_bytes: _Optional[int] = ..., max_request_id_size: _Optional[int] = ...) -> None: ...

class EngineCapabilities(_message.Message):
    __slots__ = ("batch_invariant", "preemption", "score", "masks", "adapters", "salts", "retention")
    BATCH_INVARIANT_FIELD_NUMBER: _ClassVar[int]
    PREEMPTION_FIELD_NUMBER: _ClassVar[int]
    SCORE_FIELD_NUMBER: _ClassVar[int]
    MASKS_FIELD_NUMBER: _ClassVar[int]
    ADAPTERS_FIELD_NUMBER: _ClassVar[int]
    SALTS_FIELD_NUMBER: _ClassVar[int]
    RETENTION_FIELD_NUMBER: _ClassVar[int]
    batch_invariant: bool
    preemption: bool
    score: bool
    masks: bool
    adapters: bool
    salts: bool
    retention: bool
    def __init__(self, batch_invariant: _Optional[bool] = ..., preemption: _Optional[bool] = ..., score: _Optional[bool] = ..., masks: _Optional[bool] = ..., adapters: _Optional[bool] = ..., salts: _Optional[bool] = ..., retention: _Optional[bool] = ...) -> None: ...

class GetLoadRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetLoadResponse(_message.Message):
    __slots__ = ("ready", "running", "waiting", "waiting_tokens", "kv_utilisation", "kv_cached", "open_streams", "busy")
    READY_FIELD_NUMBER: _ClassVar[int]
    RUNNING_FIELD_NUMBER: _ClassVar[int]
    WAITING_FIELD_NUMBER: _ClassVar[int]
    WAITING_TOKENS_FIELD_NUMBER: _ClassVar[int]
    KV_UTILISATION_FIELD_NUMBER: _ClassVar[int]
    KV_CACHED_FIELD_NUMBER: _ClassVar[int]
    OPEN_STREAMS_FIELD_NUMBER: _ClassVar[int]
    BUSY_FIELD_NUMBER: _ClassVar[int]
    ready: bool
    running: int
    waiting: WaitingByClass
    waiting_tokens: int
    kv_utilisation: float
    kv_cached: float
    open_streams: int
    busy: float
    def __init__(self, ready: _Optional[bool] = ..., running: _Optional[int] = ..., waiting: _Optional[_Union[WaitingByClass, _Mapping]] = ..., waiting_tokens: _Optional[int] = ..., kv_utilisation: _Optional[float] = ..., kv_cached: _Optional[float] = ..., open_streams: _Optional[int] = ..., busy: _Optional[float] = ...) -> None: ...

class WaitingByClass(_message.Message):
    __slots__ = ("interactive", "standard", "batch")
    INTERACTIVE_FIELD_NUMBER: _ClassVar[int]
    STANDARD_FIELD_NUMBER: _ClassVar[int]
    BATCH_FIELD_NUMBER: _ClassVar[int]
    interactive: int
    standard: int
    batch: int
    def __init__(self, interactive: _Optional[int] = ..., standard: _Optional[int] = ..., batch: _Optional[int] = ...) -> None: ...

class GetStepsRequest(_message.Message):
    __slots__ = ("last",)
    LAST_FIELD_NUMBER: _ClassVar[int]
    last: int
    def __init__(self, last: _Optional[int] = ...) -> None: ...

class GetStepsResponse(_message.Message):
    __slots__ = ("steps",)
    STEPS_FIELD_NUMBER: _ClassVar[int]
    steps: _containers.RepeatedCompositeFieldContainer[Step]
    def __init__(self, steps: _Optional[_Iterable[_Union[Step, _Mapping]]] = ...) -> None: ...

class Step(_message.Message):
    __slots__ = ("step", "age", "outcome", "engine_seconds", "sample_seconds", "rows", "copies", "opened", "closed", "responses", "waiting", "running", "blocks_free", "preemptions")
    STEP_FIELD_NUMBER: _ClassVar[int]
    AGE_FIELD_NUMBER: _ClassVar[int]
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    ENGINE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    SAMPLE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    COPIES_FIELD_NUMBER: _ClassVar[int]
    OPENED_FIELD_NUMBER: _ClassVar[int]
    CLOSED_FIELD_NUMBER: _ClassVar[int]
    RESPONSES_FIELD_NUMBER: _ClassVar[int]
    WAITING_FIELD_NUMBER: _ClassVar[int]
    RUNNING_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_FREE_FIELD_NUMBER: _ClassVar[int]
    PREEMPTIONS_FIELD_NUMBER: _ClassVar[int]
    step: int
    age: float
    outcome: str
    engine_seconds: float
    sample_seconds: float
    rows: _containers.RepeatedCompositeFieldContainer[StepRow]
    copies: int
    opened: _containers.RepeatedScalarFieldContainer[int]
    closed: _containers.RepeatedScalarFieldContainer[int]
    responses: int
    waiting: WaitingByClass
    running: int
    blocks_free: int
    preemptions: int
    def __init__(self, step: _Optional[int] = ..., age: _Optional[float] = ..., outcome: _Optional[str] = ..., engine_seconds: _Optional[float] = ..., sample_seconds: _Optional[float] = ..., rows: _Optional[_Iterable[_Union[StepRow, _Mapping]]] = ..., copies: _Optional[int] = ..., opened: _Optional[_Iterable[int]] = ..., closed: _Optional[_Iterable[int]] = ..., responses: _Optional[int] = ..., waiting: _Optional[_Union[WaitingByClass, _Mapping]] = ..., running: _Optional[int] = ..., blocks_free: _Optional[int] = ..., preemptions: _Optional[int] = ...) -> None: ...

class StepRow(_message.Message):
    __slots__ = ("sequence", "new_tokens", "past", "blocks", "want")
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    NEW_TOKENS_FIELD_NUMBER: _ClassVar[int]
    PAST_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    WANT_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    new_tokens: int
    past: int
    blocks: int
    want: str
    def __init__(self, sequence: _Optional[int] = ..., new_tokens: _Optional[int] = ..., past: _Optional[int] = ..., blocks: _Optional[int] = ..., want: _Optional[str] = ...) -> None: ...

class LoadEngineRequest(_message.Message):
    __slots__ = ("directory", "replace")
    DIRECTORY_FIELD_NUMBER: _ClassVar[int]
    REPLACE_FIELD_NUMBER: _ClassVar[int]
    directory: str
    replace: bool
    def __init__(self, directory: _Optional[str] = ..., replace: _Optional[bool] = ...) -> None: ...

class LoadEngineResponse(_message.Message):
    __slots__ = ("engine", "model", "fingerprint")
    ENGINE_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    engine: str
    model: str
    fingerprint: str
    def __init__(self, engine: _Optional[str] = ..., model: _Optional[str] = ..., fingerprint: _Optional[str] = ...) -> None: ...
