"""The public names, and where each is: for type checkers, and read at run time."""

from localspec._version import __version__ as __version__
from localspec.chat.chat import Chat as Chat
from localspec.chat.tool_loop import (
    RequestedCall as RequestedCall,
    run_tools as run_tools,
    run_tools_async as run_tools_async,
    tool_steps as tool_steps,
)
from localspec.engine.open_models import CacheDisk as CacheDisk
from localspec.engine.disk_usage import (
    DiskUsage as DiskUsage,
    disk_usage as disk_usage,
    free_disk as free_disk,
)
from localspec.engine.engine import Engine as Engine
from localspec.engine.embedder import Embedded as Embedded
from localspec.engine.embedder import Embedder as Embedder
from localspec.engine.embedder import load_embedder as load_embedder
from localspec.engine.loading import load as load
from localspec.engine.open_models import EngineMemory as EngineMemory
from localspec.errors import (
    BusyError as BusyError,
    CacheError as CacheError,
    ClosedError as ClosedError,
    ConstraintError as ConstraintError,
    ContextError as ContextError,
    CrashedError as CrashedError,
    DecodeError as DecodeError,
    DownloadError as DownloadError,
    EngineError as EngineError,
    ForkedError as ForkedError,
    Interrupted as Interrupted,
    LocalspecError as LocalspecError,
    MemoryLimitError as MemoryLimitError,
    ModelFileError as ModelFileError,
    ModelNotFoundError as ModelNotFoundError,
    OptionError as OptionError,
    PairError as PairError,
    ParseError as ParseError,
    PresetError as PresetError,
    RpcError as RpcError,
    SessionError as SessionError,
    TemplateError as TemplateError,
    TemplateLimitError as TemplateLimitError,
    ToolServerError as ToolServerError,
    UnknownKeywordError as UnknownKeywordError,
    UnknownPresetError as UnknownPresetError,
)
from localspec.hub.hub_file import HubFile as HubFile, HubModel as HubModel
from localspec.hub.transfer import Progress as Progress
from localspec.isolated.isolated_engine import IsolatedEngine as IsolatedEngine
from localspec.llama.model_options import LlamaOptions as LlamaOptions
from localspec.pictures.picture import Picture as Picture
from localspec.advice.explanation import (
    ExpectedGain as ExpectedGain,
    Explanation as Explanation,
    ModelFacts as ModelFacts,
    explain as explain,
)
from localspec.planning.free_memory import PairMemory as PairMemory
from localspec.planning.memory import MemoryEstimate as MemoryEstimate
from localspec.planning.plan import AtOnce as AtOnce
from localspec.presets.downloads import download as download
from localspec.presets.located import (
    PresetState as PresetState,
    list_models as list_models,
    preset_state as preset_state,
)
from localspec.presets.presets import (
    Adapter as Adapter,
    LocalModel as LocalModel,
    Preset as Preset,
)
from localspec.presets.presets import find_preset as find_preset
from localspec.sampling.logprobs import (
    TokenLogprob as TokenLogprob,
    TokenLogprobs as TokenLogprobs,
)
from localspec.sampling.params import SamplingParams as SamplingParams
from localspec.speculative.metrics import Provenance as Provenance, Stats as Stats
from localspec.speculative.policy_api import (
    DraftOff as DraftOff,
    PolicyEstimate as PolicyEstimate,
    ProposerKind as ProposerKind,
)
from localspec.streaming.answer import Answer as Answer
from localspec.streaming.answer_options import AnswerOptions as AnswerOptions
from localspec.streaming.reply import Piece as Piece, Reply as Reply, StepFacts as StepFacts
from localspec.tool_servers.servers import McpServers as McpServers
from localspec.tools.tool import CallPiece as CallPiece, Tool as Tool, ToolCall as ToolCall

def _modules() -> dict[str, str]: ...
