"""A window of Tk with a Stop button. A thread reads the answer, the window stays alive."""

from __future__ import annotations

import queue
import threading
import tkinter as tk
from tkinter import scrolledtext

import localspec

POLL_MS = 20


class ChatWindow:
    """A transcript, a line to type in, and two buttons."""

    def __init__(self, root: tk.Tk, engine: localspec.Engine) -> None:
        self._root = root
        self._chat = engine.chat()
        self._answer: localspec.Answer | None = None
        self._reader = threading.Thread()
        # Tk may be used from its own thread only, so the reader's pieces wait here.
        self._arrived: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self.transcript = scrolledtext.ScrolledText(root, wrap="word", height=20)
        self.transcript.pack(fill="both", expand=True)
        self.entry = tk.Entry(root)
        self.entry.pack(side="left", fill="x", expand=True)
        self.entry.bind("<Return>", lambda _event: self.ask())
        self.send = tk.Button(root, text="Send", command=self.ask)
        self.stop = tk.Button(root, text="Stop", command=self.cancel, state="disabled")
        self.send.pack(side="left")
        self.stop.pack(side="left")

    def ask(self) -> None:
        """Start an answer to what was typed."""
        question = self.entry.get().strip()
        if not question or self.is_answering():
            return
        self.entry.delete(0, "end")
        self.transcript.insert("end", f"\n> {question}\n")
        try:
            self._answer = self._chat.send(question)
        except localspec.LocalspecError as error:
            self.transcript.insert("end", f"[{error} {error.hint}]")
            return
        self.send["state"], self.stop["state"] = "disabled", "normal"
        self._reader = threading.Thread(target=self._read, args=(self._answer,))
        self._reader.start()
        self._root.after(POLL_MS, self._show)

    def is_answering(self) -> bool:
        return str(self.stop["state"]) == "normal"

    def cancel(self) -> None:
        """End the answer, whether it has begun or not."""
        if self._answer is not None:
            self._answer.cancel()

    def _read(self, answer: localspec.Answer) -> None:
        try:
            for piece in answer:
                if not piece.is_thought:
                    self._arrived.put(piece.text)
        except localspec.LocalspecError as error:
            self._arrived.put(f"[{error} {error.hint}]")
        self._arrived.put(None)

    def _show(self) -> None:
        while not self._arrived.empty():
            text = self._arrived.get()
            if text is None:
                self.send["state"], self.stop["state"] = "normal", "disabled"
                return
            self.transcript.insert("end", text)
            self.transcript.see("end")
        self._root.after(POLL_MS, self._show)

    def close(self) -> None:
        """Stop an answer that is running, so that the engine can be closed."""
        self.cancel()
        if self._reader.is_alive():
            self._reader.join()


def main() -> None:
    root = tk.Tk()
    root.title("localspec")
    with localspec.load() as engine:
        window = ChatWindow(root, engine)
        window.entry.focus()
        root.mainloop()
        window.close()


if __name__ == "__main__":
    main()
