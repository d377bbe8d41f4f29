"""A context of libllama, in which a model or a head computes."""

from __future__ import annotations

from localspec.errors import DecodeError, Interrupted
from localspec.gguf_file.file_content import FileStates
from localspec.llama.handle import Handle, Stop
from localspec.llama.joint_costs import LONGEST_STEP
from localspec.llama.library import complaints, llama_cpp
from localspec.llama.model_options import LlamaOptions


class LlamaContext:
    """A context's threads, its cancellation and its end.

    Prompts keep the number of threads with which the context was opened. libllama distinguishes
    a decode of one token from a decode of several. A step may be either, and the policy
    compares their costs, so both get the same number.
    """

    def __init__(self, handle: Handle) -> None:
        self.handle = handle

        self.name = handle.name
        """The name of the file."""

        self.content: str | None = None
        """A hash of the file's content; None if it is not known."""

        self.mapped: FileStates = {}
        """The files that are mapped: see `require_unwritten`."""

        self._title = handle.name  # the name in errors
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

        Raises OptionError for a number outside its range, EngineError as `require_open`.
        """
        self.require_open()
        return self._step_threads

    @num_threads.setter
    def num_threads(self, count: int) -> None:
        self.require_open()
        LlamaOptions(num_threads=count)  # raises where libllama would end the process
        self._step_threads = count

    def _start_decode(self, num_tokens: int) -> None:
        """Set threads and scales of a decode. Raises Interrupted after `interrupt`."""
        if self.is_interrupted:
            raise self._cancelled()
        self.handle.begin_decode((self._stop,))
        self._set_up(num_tokens)

    def _set_up(self, num_tokens: int) -> None:
        """Give libllama the threads and scales of this text, for a decode of `num_tokens`."""
        self._set_threads(num_tokens)
        if self.handle.scales_set != self.scales:
            self.handle.use_scales(self.scales)

    def _set_threads(self, num_tokens: int) -> None:
        """Set the threads of a decode of `num_tokens`, unless an application has set them."""
        if self.handle.owner is not None:
            return
        of_several = self._step_threads
        if num_tokens > LONGEST_STEP:
            of_several = self._prompt_threads
        wanted = (self._step_threads, of_several)
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
        """Raise EngineError if it was closed, by us or its owner, or this is a fork."""
        self.handle.require_open()

    def interrupt(self) -> None:
        """End a running decode, and refuse new ones until `begin`. From any thread.

        A decode that other texts share runs to its end.
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
