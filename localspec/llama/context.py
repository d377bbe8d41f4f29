"""A context of libllama, in which a model or a head computes."""

from __future__ import annotations

from localspec.errors import DecodeError, Interrupted
from localspec.gguf_file.file_content import FileStates
from localspec.llama.handle import Handle, Stop
from localspec.llama.joint_costs import LONGEST_STEP
from localspec.llama.library import complaints, llama_cpp
from localspec.llama.model_options import LlamaOptions

_ABORTED = 2  # what llama_decode returns after the abort callback has stopped it


class LlamaContext:
    """What models, heads and embedders share: threads, adapter scales, `interrupt`, `close`.

    A model or a head serves one text. Its siblings for other texts share the libllama context
    in `handle`.

    libllama has one number of threads for decodes of a single token, and another for decodes of
    several tokens. A step may be either, and the policy compares their costs, so both get
    `num_threads`. The decode of a prompt keeps the number with which the context was opened.
    """

    def __init__(self, handle: Handle) -> None:
        self.handle = handle

        self.name = handle.name
        """The name of the file."""

        self.content: str | None = None
        """A hash of the file's content; None if it is not known."""

        self.mapped: FileStates = {}
        """The files that are mapped into memory: see `require_unwritten`."""

        self._title = handle.name  # what error messages call the model or head
        self._step_threads: int = llama_cpp.llama_n_threads(handle.context)
        self._prompt_threads: int = llama_cpp.llama_n_threads_batch(handle.context)
        handle.threads_set = (self._step_threads, self._prompt_threads)

        self.scales = handle.scales_set
        """This text's scale of each adapter. Other texts of the context have their own."""

        self._stop = Stop()  # stops the decodes of this text alone

    @property
    def num_sequences(self) -> int:
        """Texts that the context can hold side by side."""
        return self.handle.num_sequences

    @property
    def num_threads(self) -> int:
        """Threads of a step's decode; may be set between two decodes.

        Reading and setting raise EngineError as `require_open` does, setting also OptionError
        for a number outside its range.
        """
        self.require_open()
        return self._step_threads

    @num_threads.setter
    def num_threads(self, count: int) -> None:
        self.require_open()
        LlamaOptions(num_threads=count)  # raises where libllama would end the process
        self._step_threads = count

    def _start_decode(self, num_tokens: int) -> None:
        """Prepare libllama for a decode of `num_tokens` tokens of this text alone.

        Raises Interrupted after `interrupt`.
        """
        if self.is_interrupted:
            raise self._interrupted_error()
        self.handle.begin_decode((self._stop,))
        self._set_threads_and_scales(num_tokens)

    def _set_threads_and_scales(self, num_tokens: int) -> None:
        """Set libllama's threads and adapter scales for a decode of `num_tokens` tokens."""
        self._set_threads(num_tokens)
        if self.handle.scales_set != self.scales:
            self.handle.use_scales(self.scales)

    def _set_threads(self, num_tokens: int) -> None:
        """Set the threads of a decode of `num_tokens` tokens, except for an adopted `Llama`."""
        if self.handle.adopted_llama is not None:
            return
        batch_threads = self._step_threads  # libllama's number for decodes of several tokens
        if num_tokens > LONGEST_STEP:
            batch_threads = self._prompt_threads
        wanted = (self._step_threads, batch_threads)
        if self.handle.threads_set != wanted:
            self.handle.threads_set = None  # not known if the call is interrupted
            llama_cpp.llama_set_n_threads(self.handle.context, *wanted)
            self.handle.threads_set = wanted

    def _check_decoded(self, status: int, num_tokens: int, position: int) -> None:
        """Raise the error of `decode_error`, unless libllama's status is 0."""
        if status != 0:
            raise self.decode_error(status, num_tokens, position)

    def decode_error(
        self,
        status: int,
        num_tokens: int,
        position: int,
    ) -> Interrupted | DecodeError:
        """The error for a decode that failed.

        Args:
            status: What llama_decode returned, not 0.
            num_tokens: The tokens of the decode.
            position: The position of the first of them in the text.
        """
        if status == _ABORTED:
            return self._interrupted_error()
        return DecodeError(
            f"libllama could not decode {num_tokens} tokens of {self._title} at position "
            f"{position} (status {status}){complaints.take_reason()}",
            "Out of memory? Try a smaller context or fewer GPU layers.",
        )

    def _interrupted_error(self) -> Interrupted:
        return Interrupted(f"a decode of {self._title} was cancelled")

    def require_open(self) -> None:
        """Raise EngineError if the context was closed, or this process is a fork."""
        self.handle.require_open()

    def interrupt(self) -> None:
        """Stop a running decode; a model or head refuses new ones until its `make_ready`.

        From any thread. A decode shared with texts that are not interrupted runs to its end.
        """
        self._stop.is_wanted = True
        self.handle.stop_if_unwanted()

    @property
    def is_interrupted(self) -> bool:
        """Whether `interrupt` was called since `make_ready`."""
        return self._stop.is_wanted

    def close(self) -> None:
        """Free what this context owns, or give an adopted `Llama` back.

        Idempotent. Dropping the last reference does the same, and so does the interpreter's
        end. Close a head before its target.
        """
        self.handle.close()
