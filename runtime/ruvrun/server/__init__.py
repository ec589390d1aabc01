"""The HTTP front over a driver: OpenAI's API for decoders, the Open Inference Protocol for any other graph. The only
package that knows starlette and uvicorn.

The life of a request for text here (``infer`` tells that of a call):

1. ``keys`` admits it; ``answer`` reads its body up to a limit; ``ruvrun.openai`` parses it or refuses it.
2. The tokenizer turns it into token ids (beside the event loop where the text is long).
3. The driver takes it and calls back with every token from its own thread; ``inbox`` carries these events
   into the event loop, with one wake-up for all that came since it last looked.
4. ``ruvrun.openai.Reply`` makes chunks of them. They are sent as they come, or folded into one answer.
5. Whatever ends the request early (a stop string, the client gone, a stage lost, its time up), the rest is cancelled.
"""

from ruvrun.server.app import build_app
from ruvrun.server.driver import Driver
from ruvrun.server.http import HttpServer, listen, url_of
from ruvrun.server.keys import load_keys
from ruvrun.server.limits import Limits

__all__ = ["Driver", "HttpServer", "Limits", "build_app", "listen", "load_keys", "url_of"]
