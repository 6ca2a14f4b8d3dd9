"""VllmEngine: one AsyncLLM of vLLM and the process behind it; token ids in and out, and every id counted."""

from __future__ import annotations

import uuid
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

from tts_plugin.config import SparkSettings, prepare_for_vllm
from tts_plugin.engine import Sampling
from tts_plugin.engines.spark.lm.vllm_child import ARCHITECTURE, Child
from tts_plugin.engines.spark.lm.vllm_phases import Phases
from tts_plugin.engines.spark.vocabulary import Vocabulary
from tts_plugin.errors import BadRequest, ConfigError, EngineUnavailable, NotInstalled, SynthesisFailed

Finish = Literal["stop", "length", "abort", "error"]
_CPU_KV_BYTES = 2**30
_HOTTEST = 2.0
_END_S = 5.0  # that the process may take to end by itself
_DIED = "the process of vLLM died; its log says why, and the next request starts another one"


def require_vllm() -> None:
    """Raise NotInstalled if vLLM is not in this environment."""
    if find_spec("vllm") is None:
        raise NotInstalled("lm: vllm needs vLLM, in an environment of its own: see docs/vllm.md")


class VllmEngine:
    """Made by `start`. Used from one event loop, the first that streams from it.

    context: tokens of prompt and output together. rows: token ids there are. tokens: made so far, by all
    requests. orphans: those of them that nobody read, because their reader had closed by then.
    """

    def __init__(self, llm: Any) -> None:  # Any: an AsyncLLM; vLLM is not there where this is type-checked
        self.context: int = llm.model_config.max_model_len
        self.rows: int = llm.model_config.get_vocab_size()
        self.tokens = 0
        self.orphans = 0
        self._llm = llm
        self._unread: dict[str, int] = {}  # request -> tokens made and not read yet
        self._outputs = llm.engine_core.get_output_async
        # vLLM's own door for that, a stat logger, brings its metrics into the process's registry
        llm.engine_core.get_output_async = self._counted

    async def stream(
        self, prompt: Sequence[int], sampling: Sampling, seed: int, *, most: int, stop: int | None = None
    ) -> AsyncGenerator[list[int]]:
        """Up to `most` token ids that follow `prompt`, as they are made; `stop` ends them, itself not said.

        Closing it aborts the request: the step that runs is finished, no other begins. EngineUnavailable if
        the process dies or `abort` is called, SynthesisFailed for any other error.
        """
        from vllm.inputs.engine import tokens_input
        from vllm.sampling_params import RequestOutputKind, SamplingParams
        from vllm.v1.engine.exceptions import EngineDeadError, EngineGenerateError

        if sampling.temperature > _HOTTEST:
            raise BadRequest(
                f"sampling.temperature is {sampling.temperature}; vLLM takes at most {_HOTTEST:g}"
            )
        params = SamplingParams(
            temperature=sampling.temperature,
            top_k=sampling.top_k,
            top_p=sampling.top_p,
            repetition_penalty=sampling.repetition_penalty,
            seed=seed,
            max_tokens=most,
            stop_token_ids=[] if stop is None else [stop],
            ignore_eos=stop is None,
            detokenize=False,
            output_kind=RequestOutputKind.DELTA,
        )
        name = uuid.uuid4().hex
        self._unread[name] = 0
        try:
            async with aclosing(self._llm.generate(tokens_input(list(prompt)), params, name)) as outputs:
                async for output in outputs:
                    (made,) = output.outputs
                    tokens = list(made.token_ids)
                    self._unread[name] -= len(tokens)
                    if tokens and tokens[-1] == stop:
                        tokens.pop()
                    if tokens:
                        yield tokens
                    if made.finish_reason in ("abort", "error"):
                        raise _ended(made.finish_reason)
        except EngineDeadError as error:
            raise EngineUnavailable(_DIED) from error
        except (EngineGenerateError, ValueError, RuntimeError) as error:
            raise SynthesisFailed(f"the language model failed: {error.__cause__ or error}") from error
        finally:
            self.orphans += self._unread.pop(name)
            # once more by name: generate() forgets a request that is cancelled while it is handed over
            await self._llm.abort(name)

    @property
    def dead(self) -> bool:
        """Whether the process has died."""
        return bool(self._llm.errored)

    async def abort(self) -> None:
        """End every request that runs."""
        await self._llm.abort(list(self._unread))

    def shutdown(self) -> None:
        """End the process; blocks until it has, for some seconds at most."""
        self._llm.shutdown(timeout=_END_S)

    async def _counted(self) -> Any:
        outputs = await self._outputs()
        for output in outputs.outputs:
            made = len(output.new_token_ids)
            self.tokens += made
            name = output.request_id.rpartition("-")[0]  # vLLM adds a random part to the name
            if name in self._unread:
                self._unread[name] += made
            else:
                self.orphans += made
        return outputs


def _ended(reason: str) -> Exception:
    if reason == "abort":
        return EngineUnavailable("this language model is closed: open another engine")
    return SynthesisFailed("the language model failed: vLLM gave the request up, its log says why")


def start(model_dir: Path, ids: Vocabulary, settings: SparkSettings) -> VllmEngine:
    """The LM of `model_dir` in a process of vLLM. Blocks for half a minute.

    The checkpoint is read as it lies there, by the architecture that its config is overridden with.
    ConfigError if this vLLM is of another device, EngineUnavailable if it does not start.
    """
    require_vllm()
    prepare_for_vllm(settings.device)
    from vllm import ModelRegistry
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.platforms import current_platform
    from vllm.v1.engine.async_llm import AsyncLLM

    from tts_plugin.engines.spark.lm.vllm_model import SpeechQwen2

    # the class, not its name, which vLLM would import in one more process to look at it
    ModelRegistry.register_model(ARCHITECTURE, SpeechQwen2)
    on_cpu = settings.device == "cpu"
    if current_platform.device_type != settings.device:
        raise ConfigError(
            f'device "{settings.device}": the vLLM that is installed runs on "{current_platform.device_type}"'
        )
    args = AsyncEngineArgs(
        model=str(model_dir / "LLM"),
        hf_overrides={"architectures": [ARCHITECTURE], "sparkvoice_phases": asdict(Phases.of(ids))},
        skip_tokenizer_init=True,
        generation_config="vllm",  # and not a file beside the weights, whose defaults are not ours
        dtype=settings.dtype or ("float32" if on_cpu else "bfloat16"),
        enable_prefix_caching=True,
        max_num_seqs=settings.vllm.max_requests,
        gpu_memory_utilization=settings.vllm.gpu_memory,
        kv_cache_memory_bytes=_CPU_KV_BYTES if on_cpu else None,
        enforce_eager=settings.vllm.eager or on_cpu,
        additional_config=Child(),
        disable_log_stats=True,
    )
    try:
        return VllmEngine(AsyncLLM.from_engine_args(args))
    except (RuntimeError, ValueError, OSError) as error:
        raise EngineUnavailable(f"vLLM does not start: {error}; its log says more") from error
