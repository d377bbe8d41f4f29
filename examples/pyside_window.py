"""A window of Qt with a Stop button (python -m pip install PySide6-Essentials)."""

from __future__ import annotations

import threading

from PySide6.QtCore import QObject, Signal
from PySide6.QtGui import QCloseEvent, QTextCursor
from PySide6.QtWidgets import (
    QApplication,
    QHBoxLayout,
    QLineEdit,
    QPlainTextEdit,
    QPushButton,
    QVBoxLayout,
    QWidget,
)

import localspec


class Reader(QObject):
    """Reads answers in a thread; its signals arrive in the window's."""

    arrived = Signal(str)
    finished = Signal()

    def __init__(self, chat: localspec.Chat) -> None:
        super().__init__()
        self._chat = chat
        self._answer: localspec.Answer | None = None
        self._worker = threading.Thread()

    def start(self, question: str) -> None:
        """Begin to read an answer. Raises LocalspecError if there can be none."""
        self._answer = self._chat.send(question)
        self._worker = threading.Thread(target=self._read, args=(self._answer,))
        self._worker.start()

    def cancel(self) -> None:
        """End the answer, whether it has begun or not."""
        if self._answer is not None:
            self._answer.cancel()

    def wait(self) -> None:
        """Until the last answer is read."""
        if self._worker.is_alive():
            self._worker.join()

    def _read(self, answer: localspec.Answer) -> None:
        try:
            for piece in answer:
                if not piece.is_thought:
                    self.arrived.emit(piece.text)
        except localspec.LocalspecError as error:
            self.arrived.emit(f"[{error} {error.hint}]")
        self.finished.emit()


class ChatWindow(QWidget):
    """A transcript, a line to type in, and two buttons."""

    def __init__(self, engine: localspec.Engine) -> None:
        super().__init__()
        self.setWindowTitle("localspec")
        self._reader = Reader(engine.chat())
        self._reader.arrived.connect(self._append)
        self._reader.finished.connect(self._ready)
        self.transcript = QPlainTextEdit()
        self.transcript.setReadOnly(True)
        self.entry = QLineEdit()
        self.send, self.stop = QPushButton("Send"), QPushButton("Stop")
        self.stop.setEnabled(False)
        self.entry.returnPressed.connect(self.ask)
        self.send.clicked.connect(self.ask)
        self.stop.clicked.connect(self._reader.cancel)
        line = QHBoxLayout()
        for widget in (self.entry, self.send, self.stop):
            line.addWidget(widget)
        layout = QVBoxLayout(self)
        layout.addWidget(self.transcript)
        layout.addLayout(line)

    def ask(self) -> None:
        """Start an answer to what was typed."""
        question = self.entry.text().strip()
        if not question or self.stop.isEnabled():
            return
        self.entry.clear()
        self._append(f"\n> {question}\n")
        try:
            self._reader.start(question)
        except localspec.LocalspecError as error:
            self._append(f"[{error} {error.hint}]")
            return
        self.send.setEnabled(False)
        self.stop.setEnabled(True)

    def closeEvent(self, event: QCloseEvent) -> None:
        """Stop an answer that is running, so that the engine can be closed."""
        self._reader.cancel()
        self._reader.wait()
        event.accept()

    def _append(self, text: str) -> None:
        self.transcript.moveCursor(QTextCursor.MoveOperation.End)
        self.transcript.insertPlainText(text)

    def _ready(self) -> None:
        self.send.setEnabled(True)
        self.stop.setEnabled(False)


def main() -> None:
    application = QApplication([])
    with localspec.load() as engine:
        window = ChatWindow(engine)
        window.show()
        application.exec()


if __name__ == "__main__":
    main()
