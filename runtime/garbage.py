"""Full garbage collections of a process that serves.

Python's collector looks at all objects now and then, and nothing else runs meanwhile. Modules and whatever a server has
made by the time it serves are most of these objects, and stay: without them a full collection takes a fraction of the
time. Listings, which make many objects, bring about full collections again and again.

Not its job: when the collector runs.
"""

from __future__ import annotations

import gc


def leave_out_what_is_there() -> None:
    """Exempts the objects that exist now from all later collections; call it once, when the process serves."""
    gc.collect()
    gc.freeze()
