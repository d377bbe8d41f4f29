"""A context of libllama, in which a model or a head computes."""

from __future__ import annotations

from localspec.errors import DecodeError, Interrupted
from localspec.gguf_file.file_content import FileStates
from localspec.llama.handle import Handle, Stop
from localspec.llama.joint_costs import LONGEST_STEP
from localspec.llama.library import complaints, llama_cpp
from localspec.llama.model_options import LlamaOptions


class LlamaContext:
    """A context's threads, and how it is cancelled and closed.

    Prompts keep the number of threads that the context was opened with. libllama distinguishes
    a decode of one token from one of several. A step has either, and the policy compares their
    costs, so both get the same number.

    content: what the file holds, in words; None if nobody knows. mapped: its files while they
    are mapped, see `require_unwritten`.
    """

    def __init__(self, handle: Handle) -> None:
        self.handle = handle
        self.name = handle.name  # of the file
        self.content: str | None = None
        self.mapped: FileStates = {}
        self._title = handle.name  # in errors
        self._step_threads: int = llama_cpp.llama_n_threads(handle.context)
        self._prompt_threads: int = llama_cpp.llama_n_threads_batch(handle.context)
        handle.threads_set = (self._step_threads, self._prompt_threads)
        # Of each adapter: those of this text, whatever others in the context have.
        self.scales = handle.scales_set
        self._stop = Stop()  # this text, whatever others do in the context

    @property
    def num_sequences(self) -> int:
        """Texts that its context can hold side by side."""
        return self.handle.num_sequences

    @property
    def num_threads(self) -> int:
        """Threads of a step's decode; may be set between two.

        Raises OptionError for a number outside its range, EngineError as `require_open`.
        """
        self.require_open()
        return self._step_threads

    @num_threads.setter
    def num_threads(self, count: int) -> None:
        self.require_open()
        LlamaOptions(num_threads=count)  # libllama ends the process where this raises
        self._step_threads = count

    def _start_decode(self, num_tokens: int) -> None:
        """Set threads and scales of a decode. Raises Interrupted after `interrupt`."""
        if self.is_interrupted:
            raise self._cancelled()
        self.handle.begin_decode((self._stop,))
        self._set_up(num_tokens)

    def _set_up(self, num_tokens: int) -> None:
        """Have libllama decode so many tokens with the threads and scales of this text."""
        self._set_threads(num_tokens)
        if self.handle.scales_set != self.scales:
            self.handle.use_scales(self.scales)

    def _set_threads(self, num_tokens: int) -> None:
        """Set the threads of a decode of so many tokens, unless an application has set them."""
        if self.handle.owner is not None:
            return
        of_several = self._step_threads if num_tokens <= LONGEST_STEP else self._prompt_threads
        wanted = self._step_threads, of_several
        if self.handle.threads_set != wanted:
            self.handle.threads_set = None
            llama_cpp.llama_set_n_threads(self.handle.context, *wanted)
            self.handle.threads_set = wanted

    def _check_decoded(self, status: int, num_tokens: int, position: int) -> None:
        """Raise Interrupted or DecodeError for a status of libllama other than 0."""
        if status != 0:
            raise self.failed(status, num_tokens, position)

    def failed(self, status: int, num_tokens: int, position: int) -> Interrupted | DecodeError:
        """The error of a decode with that status of libllama."""
        if status == 2:
            return self._cancelled()
        return DecodeError(
            f"libllama could not decode {num_tokens} tokens of {self._title} at position "
            f"{position} (status {status}){complaints.because()}",
            "Out of memory? Try a smaller context or fewer GPU layers.",
        )

    def _cancelled(self) -> Interrupted:
        return Interrupted(f"a decode of {self._title} was cancelled")

    def require_open(self) -> None:
        """Raise EngineError if it was closed, by us or the owner, or this is a fork."""
        self.handle.require_open()

    def interrupt(self) -> None:
        """End a running decode, and refuse new ones until `begin`. From any thread.

        A decode that other texts have a part in ends by itself.
        """
        self._stop.is_wanted = True
        self.handle.end_if_unwanted()

    @property
    def is_interrupted(self) -> bool:
        """Whether `interrupt` was called since `begin`."""
        return self._stop.is_wanted

    def close(self) -> None:
        """Free everything, or give an adopted `Llama` back. Idempotent.

        Dropping the last reference does the same, and so does the interpreter's end. A head
        has to be closed before its target.
        """
        self.handle.close()
