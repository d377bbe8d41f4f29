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
        self._worker = threading.Thread()

    def start(self, question: str) -> None:
        self._worker = threading.Thread(target=self._read, args=(question,))
        self._worker.start()

    def is_reading(self, wait_s: float = 0.0) -> bool:
        """Whether an answer is still being read, after a wait for its end."""
        if self._worker.is_alive():
            self._worker.join(wait_s)
        return self._worker.is_alive()

    def _read(self, question: str) -> None:
        try:
            for piece in self._chat.stream(question):
                self.arrived.emit(piece.text)
        except localspec.LocalspecError as error:
            self.arrived.emit(f"[{error} {error.hint}]")
        self.finished.emit()


class ChatWindow(QWidget):
    """A transcript, a line to type in, and two buttons."""

    def __init__(self, engine: localspec.Engine) -> None:
        super().__init__()
        self.setWindowTitle("localspec")
        self._engine = engine
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
        self.stop.clicked.connect(engine.cancel)
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
        self.send.setEnabled(False)
        self.stop.setEnabled(True)
        self._reader.start(question)

    def closeEvent(self, event: QCloseEvent) -> None:
        """Stop an answer that is running, so that the engine can be closed."""
        while self._reader.is_reading(wait_s=0.05):
            self._engine.cancel()  # again, if it had not begun yet
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
