"""Flask: one engine for all visitors, a conversation for each, answers as they are written.

    python examples/flask_app.py
    curl -N -d "Tell me a story." http://127.0.0.1:5000/anna

Flask answers every request in a thread of its own. The engine gives up to four answers at once,
and whoever comes then waits in line. Whoever hangs up ends the answer: Flask then closes the
generator.
"""

from collections.abc import Iterator

from flask import Flask, Response, request

import localspec


def make_app(engine: localspec.Engine) -> Flask:
    app = Flask(__name__)
    chats: dict[str, localspec.Chat] = {}

    @app.post("/<visitor>")
    def answer(visitor: str) -> Response:
        question = request.get_data(as_text=True)

        def pieces() -> Iterator[str]:
            try:
                chat = chats.setdefault(visitor, engine.chat(system="You are terse."))
                with chat.send(question, queue=True) as answer:
                    yield from (piece.text for piece in answer if not piece.is_thought)
            except localspec.LocalspecError as error:
                yield f"(I cannot answer: {error})"

        return Response(pieces(), mimetype="text/plain; charset=utf-8")

    return app


if __name__ == "__main__":
    with localspec.load(parallel=4) as engine:
        make_app(engine).run()
