"""One session's view of its drafter: what it was told, what it was asked, what it answered.

Every tree is addressed by (epoch, base length). A tree for an earlier length is re-rooted along the tokens emitted
since; it serves if the tree asked for does not come by its deadline. A session that keeps missing deadlines is
suspended: not waited for, with one question open at a time, and resumed by the first answer in time.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from paceline.speculation.modes import WaitFor
from paceline.speculation.noise import propose_seed
from paceline.speculation.proposal_row import sibling_key
from paceline.speculation.rows import Row
from paceline.speculation.shape import drawn_as_told
from paceline.speculation.tree import DraftTree
from paceline.target.context import Context
from paceline.target.fallback import Fallback
from paceline.target.lapse import Lapse
from paceline.target.port import Advance, Close, DraftFault, Open, Retry, RowTold, TreeArrived
from paceline.target.request import SessionRequest
from paceline.target.strength import Coupling, Strengths

ROW_TOKENS = 64  # of a row that is told
FIRST_PAUSE_S = 0.25  # before a refused session is offered again; doubles
LONGEST_PAUSE_S = 30.0


@dataclass(frozen=True, slots=True)
class DraftTiming:
    """How long drafters are waited for."""

    deadline_s: float  # from asking to falling back
    probe_s: float  # between questions to a suspended drafter that does not answer
    suspend_after: int  # deadlines missed in a row


class LinkView:
    """The connection as the compute thread knows it; shared by all sessions."""

    __slots__ = ("_lapse", "_met", "_missed", "generation", "proposer", "reason", "timing")

    def __init__(self, timing: DraftTiming) -> None:
        self.timing = timing
        self.generation: int | None = None  # None: no drafter is reached
        self.proposer = ""  # kind of the drafter reached last
        self.reason = Fallback.ABSENT  # why not
        self._lapse = Lapse(timing.suspend_after)
        self._missed = self._met = False  # in this step

    def up(self, generation: int, proposer: str = "") -> None:
        """A drafter is reached. It knows no session."""
        self.generation, self.proposer = generation, proposer
        self._lapse = Lapse(self.timing.suspend_after)
        self._missed = self._met = False

    def down(self, reason: Fallback) -> None:
        """The drafter is gone."""
        self.generation, self.reason = None, reason

    @property
    def suspended(self) -> bool:
        """True if the drafter missed several deadlines in a row for every session, and is not waited for."""
        return self.generation is not None and self._lapse.suspended

    def missed(self) -> None:
        """A session's deadline passed."""
        self._missed = True

    def met(self) -> None:
        """A tree came in time."""
        self._met = True
        self._lapse.met()

    def stepped(self) -> None:
        """A step is over: it counts as one deadline missed if trees were missed and none came in time."""
        if self._missed and not self._met:
            self._lapse.missed()
        self._missed = self._met = False


@dataclass(frozen=True, slots=True, eq=False)
class _Row:
    base_length: int
    drawn: int | None
    row: Row


@dataclass(slots=True)
class _Question:
    length: int  # base length of the tree asked for
    at: float  # seconds on the engine's clock
    missed: bool = False  # its deadline has been counted
    narrowed: bool = False  # it goes on with an earlier one, below a drawn token


class Drafting:
    """Drafter state of one session. Compute thread only."""

    __slots__ = (
        "_answered", "_asked", "_coupling", "_deadline_s", "_fault", "_generation", "_growing", "_key_seed", "_lapse",
        "_link", "_open", "_pauses", "_refused", "_request", "_retry_at", "_row", "_sent", "_tree", "_tree_length",
        "asked_at", "epoch", "took_s", "tree_at",
    )  # fmt: skip

    def __init__(self, request: SessionRequest, link: LinkView, strengths: Strengths | None = None) -> None:
        self._request, self._link = request, link
        wish = request.wish
        self._coupling = (
            Coupling(strengths or Strengths(), request.sampling.temperature, wish.strength) if wish.coupled else None
        )
        self._deadline_s = math.inf if wish.wait is WaitFor.TREE else wish.deadline_s or link.timing.deadline_s
        self._key_seed = propose_seed(request.sampling.seed, request.sampling.choice) if wish.sampled else None
        self.epoch = 0
        self.took_s: float | None = None  # seconds the tree that came last took, if it was drafted from the start
        self.asked_at: float | None = None  # when the latest tree was asked for, for records
        self.tree_at: float | None = None  # when the latest tree came
        self._renew(None)

    def _renew(self, generation: int | None) -> None:
        """Forgets the drafter of an earlier connection."""
        self._generation = generation
        self._open = False
        self._sent = 0  # context length the drafter was told of
        self._asked: _Question | None = None
        self._answered = 0  # context length for which a tree or a fault has come
        self._tree: DraftTree | None = None
        self._tree_length = 0  # base length the tree was drafted for
        self._growing = False  # whether more levels of it are to come
        self._row: _Row | None = None  # to be told
        self._fault: Fallback | None = None  # what came instead of a tree for the current length
        self._refused: Fallback | None = None  # why the session is not open
        self._retry_at: float | None = 0.0  # None: never on this connection
        self._pauses = 0
        self._lapse = Lapse(self._link.timing.suspend_after)

    @property
    def suspended(self) -> bool:
        """True if trees of this session are not waited for."""
        return self._lapse.suspended or self._link.suspended

    @property
    def held(self) -> bool:
        """True if the drafter holds the session, so that trees may come."""
        return self._open and self._generation == self._link.generation

    @property
    def unheard(self) -> bool:
        """True if a drafter is reached that was not told of the session, and would take it."""
        return (
            self._link.generation is not None
            and self._generation in (None, self._link.generation)
            and not self._open
            and self._refused is None
        )

    @property
    def told(self) -> bool:
        """True if this connection's drafter has heard of the session, so that its end must be told."""
        return self._sent > 0 and self._generation is not None and self._generation == self._link.generation

    # -- outwards -----------------------------------------------------------------------------------------------------

    def update(
        self, session: int, context: Context, eos: tuple[int, ...], learn: bool, budget: int, now: float
    ) -> Open | Advance | RowTold | None:
        """What to tell the drafter now, if anything. Call `sent` once it is on its way.

        A budget of 0 asks for no tree: the session is opened early so that the drafter can read the prompt meanwhile.
        """
        link = self._link
        if link.generation is None:
            return None
        if self._generation != link.generation:
            self._renew(link.generation)
        length = len(context)
        if not self._open:
            if self._retry_at is None or now < self._retry_at or self._answered >= length:
                return None
            return self._opening(session, context, eos, learn=learn, budget=budget)
        row, self._row = self._row, None
        if row is not None and row.base_length == self._sent:
            if row.drawn is None and length == self._sent:
                return RowTold(session, self.epoch, self._sent, None, row.row, 0)
            if row.drawn is not None and length == self._sent + 1:
                return RowTold(session, self.epoch, self._sent, row.drawn, row.row, budget)
        if budget == 0 or self._answered >= length:
            return None
        if self._asked is not None:
            again_s = link.timing.probe_s if self.suspended and math.isfinite(self._deadline_s) else 0.0
            if self._asked.length == length or now - self._asked.at < again_s:
                return None
        return Advance(session, self.epoch, self._sent, context.copy(self._sent), budget)

    def lesson(self, session: int, context: Context, eos: tuple[int, ...]) -> tuple[Open, Close] | None:
        """A whole reply for a drafter that learns from it and has not heard of the session; None if nobody listens."""
        if not self.unheard or self._link.suspended:
            return None
        whole = self._opening(session, context, eos, learn=True, budget=0)
        return whole, Close(session, whole.epoch)

    def ending(self, session: int, context: Context) -> Advance | None:
        """The last tokens of a reply, for a drafter that learns from it; None if it does not need them."""
        if not self.held or self.suspended or self._sent == len(context):
            return None
        return Advance(session, self.epoch, self._sent, context.copy(self._sent), 0)

    def tell_row(self, base_length: int, drawn: int | None, row: Row) -> None:
        """The row at a context of that length goes to the drafter with the next frame, if it holds the session."""
        self._row = _Row(base_length, drawn, row.largest(ROW_TOKENS)) if self._open else None

    def sent(self, update: Open | Advance | RowTold, now: float) -> None:
        """Notes that an update is on its way."""
        if isinstance(update, Open):
            self.epoch, self._open = update.epoch, True
            self._sent = len(update.context)
        elif isinstance(update, Advance):
            self._sent = update.base_length + len(update.tokens)
        else:
            self._sent = update.base_length + (update.drawn is not None)
        if update.budget > 0:
            self._asked = _Question(self._sent, now, narrowed=isinstance(update, RowTold))
            self.asked_at = now

    # -- inwards ------------------------------------------------------------------------------------------------------

    def arrived(self, event: TreeArrived, context: Context) -> bool:
        """Takes a tree; False if it belongs to an earlier incarnation of the session."""
        if not self.held or event.epoch != self.epoch:
            return False
        length, base = len(context), event.base_length
        text = self._wrong(event.tree, base)
        if text is not None:
            fault = DraftFault(event.session, event.epoch, Fallback.INVALID, Retry.REOPEN, text)
            return self.failed(fault, length, event.at)
        asked = self._asked
        self.took_s = None
        if asked is not None and asked.length == base:
            took_s = event.at - asked.at
            if took_s <= self._deadline_s:  # the first levels count: they serve where the rest is late
                self._lapse.met()
                self._link.met()
            if not event.growing:
                self._asked = None
                self.took_s = None if asked.narrowed else took_s
        self._pauses = 0  # it works again
        if base < self._tree_length and self._tree is not None:
            return True  # a newer one is here
        tree = event.tree.below(context.copy(base).tolist())
        if base == length and not event.growing:
            self._answered, self._fault = length, None
        if tree is not None:
            self._tree = tree
            self._tree_length, self._growing, self.tree_at = base, event.growing, event.at
        return True

    def _wrong(self, tree: DraftTree, base: int) -> str | None:
        """What a tree for a context of `base` tokens breaks, beyond the rules of the wire; None if nothing."""
        if not 1 <= base <= self._sent:
            return f"tree for length {base}, told of {self._sent}"
        seed = self._key_seed
        if seed is None:  # rows would choose how the tree is verified
            return None if tree.rows is None else "rows of drawn siblings, which were not asked for"
        if drawn_as_told(tree, lambda depth: sibling_key(seed, 0, base + depth - 1)):
            return None
        return "siblings are not those that their row and the noise give"

    def failed(self, fault: DraftFault, length: int, now: float) -> bool:
        """Takes a fault; False if it belongs to an earlier incarnation of the session."""
        if not self.held or fault.epoch != self.epoch:
            return False
        self._asked = None
        self._answered, self._fault = length, fault.reason
        if fault.retry is not Retry.ASK:
            self._open, self._refused = False, fault.reason
        if fault.retry is Retry.NEVER:
            self._retry_at = None
        elif fault.retry is Retry.LATER or (fault.retry is Retry.REOPEN and self._pauses > 0):
            self._retry_at = now + min(FIRST_PAUSE_S * 2**self._pauses, LONGEST_PAUSE_S)
        self._pauses += fault.retry is not Retry.ASK
        return True

    def _opening(self, session: int, context: Context, eos: tuple[int, ...], *, learn: bool, budget: int) -> Open:
        return Open(
            session=session,
            epoch=self.epoch + 1,
            context=context.copy(0),
            prompt_length=context.prompt_length,
            wish=self._request.wish,
            sampling=self._request.sampling,
            eos_token_ids=eos,
            learn=learn,
            budget=budget,
            strength=0.0 if self._coupling is None else self._coupling.choose(self._link.proposer),
        )

    @property
    def strength(self) -> float:
        """Coupling strength of its trees; 0 before it is chosen, and where proposals are not coupled."""
        return 0.0 if self._coupling is None else self._coupling.strength

    def walked(self, accepted: int) -> None:
        """A round with a tree has ended."""
        if self._coupling is not None:
            self._coupling.walked(accepted)

    def ended(self) -> None:
        """The session is over."""
        if self._coupling is not None:
            self._coupling.report()

    def moved(self, tokens: tuple[int, ...]) -> None:
        """The context has grown by `tokens`."""
        self._fault = None
        if self._tree is not None:
            self._tree = self._tree.below(tokens)

    # -- for the round ------------------------------------------------------------------------------------------------

    def fresh(self, length: int) -> DraftTree | None:
        """The tree drafted for exactly this context, if it has come whole."""
        return self._tree if self.held and self._tree_length == length and not self._growing else None

    def late(self) -> DraftTree | None:
        """What is left of an earlier tree below the tokens emitted since, or is there of a growing one, if anything."""
        return self._tree if self.held and self._tree is not None and len(self._tree) else None

    @property
    def growing(self) -> bool:
        """True if more of the tree is to come."""
        return self._growing

    def expected_by(self, length: int) -> float | None:
        """Deadline of the tree for this context; None if it is not waited for."""
        if not self.held or self._asked is None or self._asked.length != length:
            return None
        if self.suspended and math.isfinite(self._deadline_s):
            return None
        return self._asked.at + self._deadline_s

    def others_wait_until(self) -> float:
        """How long others wait for the tree asked for: whatever this request would, no longer than the replica does."""
        return -math.inf if self._asked is None else self._asked.at + self._link.timing.deadline_s

    def overdue(self, length: int, now: float) -> None:
        """Counts, once, a tree for this context that was waited for and has missed its deadline."""
        asked = self._asked
        if asked is None or asked.length != length or asked.missed or now < asked.at + self._deadline_s:
            return
        asked.missed = True
        self._lapse.missed()
        self._link.missed()

    def reason(self) -> Fallback:
        """Why there is no tree now."""
        if self._link.generation is None:
            return self._link.reason
        if self._generation != self._link.generation:
            return Fallback.LOST if self._generation is not None else Fallback.LATE
        if self._fault is not None:
            return self._fault
        if not self._open and self._refused is not None:
            return self._refused
        return Fallback.SUSPENDED if self.suspended else Fallback.LATE
