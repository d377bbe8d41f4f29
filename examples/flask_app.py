"""Flask: one engine for all visitors, a conversation for each, answers as they are written.

    python examples/flask_app.py
    curl -N -d "Tell me a story." http://127.0.0.1:5000/anna

Flask answers every request in a thread of its own. The engine gives up to four answers at once,
and whoever comes then waits in line. A question that cannot be answered, such as one that is
too long, gets status 400 and the reason. Whoever hangs up ends the answer: Flask then closes
the generator.
"""

from collections.abc import Iterator

from flask import Flask, Response, request

import localspec


def pieces(answer: localspec.Answer) -> Iterator[str]:
    try:
        with answer:
            yield from (piece.text for piece in answer if not piece.is_thought)
    except localspec.LocalspecError as error:
        yield f"(The answer ends here: {error})"


def make_app(engine: localspec.Engine) -> Flask:
    app = Flask(__name__)
    chats: dict[str, localspec.Chat] = {}

    @app.post("/<visitor>")
    def reply_to(visitor: str) -> Response:
        question = request.get_data(as_text=True)
        try:
            chat = chats.setdefault(visitor, engine.chat(system="You are terse."))
            answer = chat.send(question, queue=True)
            answer.start()  # a status can still be chosen
        except localspec.EngineError as error:
            return Response(str(error), status=503, mimetype="text/plain")
        except localspec.LocalspecError as error:
            return Response(f"{error}. {error.hint}", status=400, mimetype="text/plain")
        return Response(pieces(answer), mimetype="text/plain; charset=utf-8")

    return app


if __name__ == "__main__":
    with localspec.load(parallel=4) as engine:
        make_app(engine).run()
