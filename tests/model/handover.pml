/* The handover of one shard between the workers of a brokered service, as the engine of its keeper
 * and the worker library do it. lib/arena/layout.md, "Ownership", has the protocol; each part here
 * names the code that it stands for. check.sh searches all states of it, and of its mutants, each of
 * which must be found wrong.
 *
 * The application takes INPUTS completions in their order; each transaction acknowledges one and
 * replaces the shard's state. Workers may be killed between any two stores, may hang (they are
 * killed), may go mad (commit what is invalid and write on until they are dead), and may be asked to
 * release at any time.
 *
 * With UPGRADE, slot 0 has the old program and slot 1 the new one, and the keeper replaces the one by
 * the other as supervisor/keeper/upgrades/upgrade_under_way.cc does: the new worker is on trial, the shard
 * is handed to it, it is watched, and it keeps the shard or gives it back. Deadlines may pass at any moment.
 *
 * Checked: every transaction that counts is applied once, in order and by its owner's epoch (A1);
 * there is one owner (A2); a state that was committed stays as it was written (A3); what an owner
 * published before it died is applied (A4); and when nothing can happen any more, a ready worker
 * owns the shard and has done everything (A5). Of an upgrade: a worker on trial is given nothing
 * but what is handed to it, as long as an old one can take it (U1); the old one steps back when the
 * shard is the new one's (U2) and that was not ill when it was looked at (U3); the new one is ended
 * while the keeper knows of an old one (U4), and is without the shard when it is over (U5); it comes
 * to an end, and unless it has completed or an old worker failed, somebody serves (U6). */

#ifndef INPUTS
#define INPUTS 2
#endif
#ifndef SLOTS
#define SLOTS 2 /* of workers: arena::WorkerSlot */
#endif
#ifndef LIVES
#define LIVES 2 /* processes that use a slot, one after the other */
#endif
#ifndef BANKS
#define BANKS 2 /* arena::kCommitBanks, which is 4 */
#endif
#ifndef ROOM
#define ROOM 2 /* arena::kCommitLogEntries, which is 1024 */
#endif
#ifndef KILLS
#define KILLS 2
#endif
#ifndef MADNESS
#define MADNESS 1
#endif
#ifndef HANDOFFS
#define HANDOFFS 2
#endif

/* Two kinds of workers break the contract, so that P3 alone is left to check (A1, A2): one stores
 * its tail once more after it released, the other marks its own locks as dead and goes on. */
#if defined(LATE_RELEASER) || defined(LIARS)
#define TRUSTED false
#else
#define TRUSTED true
#endif

#define EPOCHS (2 * SLOTS * LIVES + 2 * HANDOFFS + 4)
#define NOBODY 15 /* arena::kNobody */

/* arena::CommitKind; INVALID is whatever TransactionReader::Read refuses. */
#define DATA 1
#define RELEASE 2
#define INVALID 3

/* ---- Worker log memory (lib/arena/layout.h). */

typedef Entry { /* arena::CommitEntry */
  byte kind;
  byte acknowledged;
  byte state_slot;
  byte epoch; /* for A1 only: who wrote it */
};

typedef Bank { /* arena::BankHeader and its entries; the tail is one word */
  byte tail_epoch;
  byte tail;
  Entry entries[ROOM];
};

Bank bank[BANKS];
byte state[2]; /* Arena::shard_state: how many inputs it accounts for, and who wrote it */
#define STATE(of, count) (of * 8 + count)

#define UNUSED 0
#define HELD 1
#define DIED 2
byte lock_of_writer[SLOTS]; /* arena::WorkerSlot::thread_locks: of the thread that is modelled, */
byte lock_of_other[SLOTS];  /* and of another of the same process */

/* ---- Driver log memory: arena::ShardRecord and OwnershipRecord. */

byte epoch, owner = NOBODY, owner_id;
byte asked_epoch; /* Engine::ShardState: the last that was asked to release */
byte commit_head;
byte acknowledged;
byte state_slot;
byte release_requested;

/* ---- The engine's own memory: Engine::Worker, Engine::ShardState, Ownership::writers_. */

byte worker_id[SLOTS];
bool ready[SLOTS], ended[SLOTS], fenced[SLOTS];
byte writers[BANKS];
byte awaited_death_id;
byte handoff_id;

/* What other threads have posted to it: Engine::Post. */
byte ready_posted[SLOTS];   /* WorkerRequests::SetReady */
byte death_posted[SLOTS];   /* DeathWatcher's callback */
byte watched[SLOTS];        /* DeathWatcher::watched_ */

/* ---- The system. */

bool killed[SLOTS]; /* SIGKILL, a crash, or a hang that ends with one */
byte gone[SLOTS];   /* the process is gone: its pidfd says so */

/* ---- What only the checks know. */

byte published[EPOCHS];     /* entries that the owner of the epoch had published while it lived */
bool was_mad[EPOCHS];       /* it also published what is invalid */
byte committed_state;       /* what state[state_slot] was when it was committed */
byte kills, madness, handoffs, liars;

#ifdef UPGRADE
#define OLD 0
#define NEW 1
#if SLOTS != 2 || LIVES != 1
#error "an upgrade is modelled with one worker of each program"
#endif
#ifndef ILLNESSES
#define ILLNESSES 1
#endif

/* v1::UpgradePhase */
#define NOT_ASKED 0
#define STARTING 1
#define HANDING_OVER 2
#define WATCHING 3
#define RETURNING 4
#define RETIRING 5
#define COMPLETED 6
#define ROLLED_BACK 7
#define FAILED 8
byte phase;
bool moving; /* ShardTransfer::moving_ */
bool knows[SLOTS]; /* Current::old_workers and new_workers: attached, as far as it has heard */

/* Between the management loop's thread and the engine's. */
#define HAND_TO_OLD 1 /* MoveShards */
#define HAND_TO_NEW 2
#define CANCEL 3 /* its time-out */
#define LOOK 4
#define PROMOTE 5
#define STOP_NEW 6 /* Engine::AskToStop */
#define STOP_OLD 7
#define NEW_FIRST 8 /* Engine::SetStanding */
#define OLD_LAST 9
byte posted;         /* what the engine is to do: Engine::Post */
byte owner_seen;     /* the answer to LOOK and PROMOTE */
#define MOVED 1
#define NOT_MOVED 2
byte moves_end;      /* HandoffsResult, told to the loop */
bool told_gone[SLOTS]; /* UpgradeUnderWay::OnGone is due */

bool first[SLOTS];      /* Engine::Worker::standing is kFirst */
bool stop_asked[SLOTS]; /* arena::DriverMemoryHeader::stop_requested */
bool first_commit_due;  /* Engine::ShardState::blackout_start_ns */
byte adopted;           /* the last epoch of which an owner has committed something */
bool ill;               /* the new worker says so: arena::WorkerSlot::health */
bool ill_then;          /* for U3: when it was looked at */
bool old_failed;        /* for U6 */
byte illnesses;
#endif

/* ================================================================ a worker's process */

inline WriteEntry(a_kind) {
  atomic {
    bank[mine % BANKS].entries[tail % ROOM].kind = a_kind;
    bank[mine % BANKS].entries[tail % ROOM].acknowledged = seen + 1;
    bank[mine % BANKS].entries[tail % ROOM].state_slot = 1 - slot;
    bank[mine % BANKS].entries[tail % ROOM].epoch = mine
  }
}

inline StoreTail() {
  atomic {
    bank[mine % BANKS].tail_epoch = mine;
    bank[mine % BANKS].tail = tail + 1;
    published[mine] = tail + 1
  }
}

/* Shard::Publish: the entries, then one release store of the tail. */
inline Publish(a_kind) {
#ifdef MUTANT_TAIL_FIRST
  StoreTail();
#else
  WriteEntry(a_kind);
#endif
  if
  :: killed[me] -> goto dying
  :: true
  fi;
#ifdef MUTANT_TAIL_FIRST
  WriteEntry(a_kind);
#else
  StoreTail();
#endif
  tail++
}

#ifdef MUTANT_ADOPT_LOOKS_AT_THE_INDEX_ONLY
#define FRESH(of) (bank[of % BANKS].tail == 0)
#else
#define FRESH(of) (of != given_back)
#endif

/* UpgradeUnderWay::Start starts the new one. */
#ifdef UPGRADE
#define MAY_ATTACH(me) (me == OLD || phase == STARTING)
#else
#define MAY_ATTACH(me) true
#endif

#define LOST (mine != 0 && (owner != me || epoch != mine))

proctype Worker(byte me) {
  byte life, id, mine, word, tail, seen, slot;
  byte given_back; /* Shard::released_epoch_ */

  do
  :: life == LIVES -> break
  :: else ->
    /* WorkerRequests::Attach, Engine::AddWorker: in a free slot, with fresh locks. */
end_attach:
    atomic {
      worker_id[me] == 0 && ready_posted[me] == 0 && MAY_ATTACH(me);
#ifdef UPGRADE
      knows[me] = true;               /* UpgradeUnderWay::OnAttached */
      first[me] = (me == OLD);
#ifdef MUTANT_NO_TRIAL
      first[me] = true;
#endif
#endif
      id = me * LIVES + life + 1;
      life++;
      worker_id[me] = id; ready[me] = false; ended[me] = false; fenced[me] = false;
      lock_of_writer[me] = HELD; lock_of_other[me] = HELD;
      killed[me] = false; gone[me] = 0;
      mine = 0; tail = 0; seen = 0; slot = 0; given_back = 0;
      /* WorkerRequests::SetReady */
      watched[me] = id;
      ready_posted[me] = id
    }
end_serve:
    do
    :: killed[me] -> goto dying

    /* OwnershipChanges::Handle and Adopt. What it gave back is its own by this word until the
     * driver has seen it, and it may be slow between the two looks. */
    :: atomic { mine == 0 && owner == me -> word = epoch };
      if
      :: killed[me] -> goto dying
      :: atomic { FRESH(word) -> mine = word; tail = 0; word = 0;
#ifdef UPGRADE
           adopted = (epoch == mine && owner == me -> mine : adopted)
#endif
         };
        atomic {
          seen = acknowledged; slot = state_slot;
          assert(!TRUSTED || epoch != mine || owner != me || state[slot] == committed_state) /* A3 */
        }
      :: atomic { !FRESH(word) -> word = 0 }
      fi

    /* It learns that it lost the shard; until then it goes on, with nothing to show for it. */
    :: atomic { LOST -> mine = 0 }

    /* One transaction: Shard::SetState into the free slot of two, then Shard::Commit. It does not
     * wait for the driver before the next, as long as there is room. */
    :: mine != 0 && seen < INPUTS && tail - commit_head < ROOM ->
#ifdef MUTANT_STATE_IN_PLACE
      slot = 1 - slot;
#endif
      state[1 - slot] = STATE(mine, seen + 1);
      if
      :: killed[me] -> goto dying
      :: true
      fi;
      Publish(DATA);
      atomic { seen++; slot = 1 - slot }

    /* Worker::Run, asked to release: the last entry of its epoch. */
    :: mine != 0 && release_requested == mine && tail - commit_head < ROOM ->
      Publish(RELEASE);
      given_back = mine;
#ifdef LATE_RELEASER
      goto end_late
#else
      mine = 0
#endif

#ifdef UPGRADE
    /* OwnershipChanges::NoteStopRequest: it gives back what it has, unasked, and its process ends. */
    :: mine != 0 && stop_asked[me] && tail - commit_head < ROOM ->
      Publish(RELEASE);
      atomic { given_back = mine; mine = 0; killed[me] = true }
    :: atomic { mine == 0 && stop_asked[me] -> killed[me] = true }
#endif

    /* It goes mad, and goes on with its work afterwards: it does not know. */
    :: atomic {
         mine != 0 && madness < MADNESS && tail - commit_head < ROOM -> madness++;
         was_mad[mine] = true;
#ifdef UPGRADE
         old_failed = old_failed || me == OLD
#endif
       };
      Publish(INVALID)
    od;

#ifdef LATE_RELEASER
    /* A thread that it had forgotten stores its last tail once more, at any time. */
end_late:
    if
    :: killed[me] -> goto dying
    :: atomic {
         bank[mine % BANKS].tail_epoch = mine; bank[mine % BANKS].tail = tail; mine = 0
       };
       goto end_serve
    :: atomic { owner == me && epoch != mine -> mine = 0 }; goto end_serve
    fi;
#endif

dying:
    /* The kernel tears the threads down one by one, in any order, and the process last. */
    atomic { lock_of_writer[me] = DIED; mine = 0; word = 0; tail = 0; seen = 0; slot = 0; given_back = 0 };
    atomic { lock_of_other[me] == DIED && killed[me]; gone[me] = id };
  od
}

proctype OtherThread(byte me) {
end:
  do
  :: atomic { killed[me] && lock_of_other[me] == HELD -> lock_of_other[me] = DIED }
  od
}

/* ================================================================ the keeper */

/* DeathWatcher::Inspect, Loop: tells once, when every lock that the worker held is marked. */
#ifdef MUTANT_FIRST_LOCK
#define LOCKS_DEAD(s) (lock_of_writer[s] == DIED || lock_of_other[s] == DIED)
#else
#define LOCKS_DEAD(s) (lock_of_writer[s] == DIED && lock_of_other[s] == DIED)
#endif

proctype DeathWatcher() {
end:
  do
  :: atomic { watched[0] != 0 && LOCKS_DEAD(0) -> death_posted[0] = watched[0]; watched[0] = 0 }
#if SLOTS > 1
  :: atomic { watched[1] != 0 && LOCKS_DEAD(1) -> death_posted[1] = watched[1]; watched[1] = 0 }
#endif
#if SLOTS > 2
  :: atomic { watched[2] != 0 && LOCKS_DEAD(2) -> death_posted[2] = watched[2]; watched[2] = 0 }
#endif
  od
}

#define OUT_IDLE 0
#define OUT_APPLIED 1
#define OUT_RELEASED 2
#define OUT_INVALID 3

#ifndef MUTANT_NO_EPOCH_COMPARE
#define PUBLISHED \
  (bank[epoch % BANKS].tail_epoch == epoch && bank[epoch % BANKS].tail != commit_head)
#else
#define PUBLISHED (bank[epoch % BANKS].tail > commit_head)
#endif

/* QueueDriver::ApplyNext. The entry is copied before it is looked at. */
inline ApplyNext() {
  atomic {
    t_epoch = bank[epoch % BANKS].tail_epoch;
    t_tail = bank[epoch % BANKS].tail
  };
  if
#ifndef MUTANT_NO_EPOCH_COMPARE
  :: t_epoch != epoch -> outcome = OUT_IDLE
  :: t_epoch == epoch && t_tail == commit_head -> outcome = OUT_IDLE
  :: t_epoch == epoch && t_tail != commit_head ->
#else
  :: t_tail <= commit_head -> outcome = OUT_IDLE
  :: t_tail > commit_head ->
#endif
    atomic {
      copy.kind = bank[epoch % BANKS].entries[commit_head % ROOM].kind;
      copy.acknowledged = bank[epoch % BANKS].entries[commit_head % ROOM].acknowledged;
      copy.state_slot = bank[epoch % BANKS].entries[commit_head % ROOM].state_slot;
      copy.epoch = bank[epoch % BANKS].entries[commit_head % ROOM].epoch
    };
    atomic {
      if
      :: copy.kind != DATA && copy.kind != RELEASE -> outcome = OUT_INVALID
      :: copy.kind == RELEASE ->
        assert(copy.epoch == epoch); /* A1 */
        commit_head++;
        outcome = OUT_RELEASED
      :: copy.kind == DATA ->
        assert(copy.epoch == epoch);                     /* A1: of its owner */
        assert(copy.acknowledged == acknowledged + 1);   /* A1: each once, in order */
        assert(!TRUSTED || state[copy.state_slot] == STATE(epoch, copy.acknowledged)); /* A3 */
        committed_state = state[copy.state_slot];
        acknowledged = copy.acknowledged;
        state_slot = copy.state_slot;
        commit_head++;
        outcome = OUT_APPLIED
      fi;
      copy.kind = 0; copy.acknowledged = 0; copy.state_slot = 0; copy.epoch = 0
    }
  fi;
  atomic { t_epoch = 0; t_tail = 0 }
}

/* Engine::EndOwnership and Ownership::End: the cut. */
inline EndOwnership(was_released) {
  outcome = (was_released -> OUT_RELEASED : OUT_APPLIED);
#ifndef MUTANT_NO_CUT
  do
  :: outcome == OUT_APPLIED -> ApplyNext()
  :: else -> break
  od;
#endif
  atomic {
    /* A4; what a mad worker wrote behind its invalid transaction does not count. */
    assert(!TRUSTED || was_mad[epoch] || commit_head == published[epoch]);
    if
    :: outcome == OUT_RELEASED -> writers[epoch % BANKS] = 0
    :: else
    fi;
    release_requested = 0;
    asked_epoch = 0; /* of no further use */
    owner = NOBODY;
    owner_id = 0;
    outcome = OUT_IDLE
  }
}

/* Engine::FinishHandoff. */
#ifdef UPGRADE
#define FINISH_HANDOFF(how) handoff_id = 0; moves_end = how
#else
#define FINISH_HANDOFF(how) handoff_id = 0
#endif

#define CAN_SERVE(s) (worker_id[s] != 0 && ready[s] && !ended[s])

/* Engine::ChooseWorker: the successor that was asked for, or else the first in standing. */
#ifdef UPGRADE
#define IS_HEIR(s) (handoff_id != 0 && handoff_id == worker_id[s])
#define MAY_CHOOSE(s) \
  (CAN_SERVE(s) && (IS_HEIR(s) || !CAN_SERVE(1 - s) || (!IS_HEIR(1 - s) && first[s] >= first[1 - s])))
#else
#define MAY_CHOOSE(s) CAN_SERVE(s)
#endif

/* Engine::Assign, Ownership::NextEpoch, CanGive and GiveTo. */
inline Assign() {
  if
  :: awaited_death_id == 0 && owner == NOBODY ->
    atomic {
      if
      :: MAY_CHOOSE(0) -> chosen = 0
#if SLOTS > 1
      :: MAY_CHOOSE(1) -> chosen = 1
#endif
#if SLOTS > 2
      :: MAY_CHOOSE(2) -> chosen = 2
#endif
      :: else -> chosen = NOBODY
      fi;
      next = epoch + 1;
#ifndef MUTANT_BANK_REUSED
      do
      :: next <= epoch + BANKS && writers[next % BANKS] != 0 -> next++
      :: else -> break
      od
#endif
    };
    if
    :: chosen != NOBODY && next <= epoch + BANKS ->
      atomic {
        bank[next % BANKS].tail_epoch = next;
        bank[next % BANKS].tail = 0;
      };
      atomic {
        assert(owner == NOBODY); /* A2 */
        assert(next < EPOCHS);
#ifdef UPGRADE
        assert(chosen == OLD || !CAN_SERVE(OLD) || IS_HEIR(NEW) || !first[OLD]); /* U1 */
        first_commit_due = true;
#endif
        commit_head = 0;
        release_requested = 0;
        writers[next % BANKS] = worker_id[chosen];
        owner_id = worker_id[chosen];
        epoch = next; owner = chosen /* the one word that moves the shard */
      }
    :: else
    fi;
    atomic { chosen = 0; next = 0 }
  :: else
  fi
}

/* Engine::HandleEnd. */
inline HandleEnd(s, await_death) {
  ended[s] = true;
  if
  :: handoff_id == worker_id[s] -> atomic { FINISH_HANDOFF(NOT_MOVED); release_requested = 0 }
  :: else
  fi;
  if
  :: owner == s ->
    EndOwnership(false);
#ifndef MUTANT_GRANT_BEFORE_DEATH
    if
    :: await_death -> awaited_death_id = worker_id[s]
    :: else
    fi;
#endif
    Assign()
  :: else
  fi
}

/* Engine::WorkerDead; only then the slot serves again (WorkerEnds::OnProcessGone). */
inline WorkerDead(s) {
  if
  :: !ended[s] -> HandleEnd(s, false)
  :: else
  fi;
  atomic {
    i = 0;
    do /* Ownership::ProveDead */
    :: i < BANKS ->
      if
      :: writers[i] == worker_id[s] -> writers[i] = 0
      :: else
      fi;
      i++
    :: else -> break
    od;
    i = 0;
    if
    :: awaited_death_id == worker_id[s] -> awaited_death_id = 0
    :: else
    fi;
    watched[s] = 0;      /* DeathWatcher::Forget */
    ready[s] = false;
#ifdef UPGRADE
    told_gone[s] = true;
#endif
    gone[s] = 0;
    death_posted[s] = 0;
    worker_id[s] = 0
  };
#ifndef MUTANT_NO_ASSIGN_WAITING
  Assign() /* Engine::AssignWaiting */
#else
  skip
#endif
}

inline ServeSlot(s) {
  if
  /* Engine::SetReady */
  :: ready_posted[s] != 0 ->
    atomic {
      ready[s] = (ready_posted[s] == worker_id[s]);
      ready_posted[s] = 0
    };
    Assign()
  /* Engine::WorkerEnded: the locks say that nothing of it runs. */
  :: death_posted[s] != 0 && (worker_id[s] != death_posted[s] || ended[s]) -> death_posted[s] = 0
  :: death_posted[s] != 0 && worker_id[s] == death_posted[s] && !ended[s] ->
    death_posted[s] = 0;
    HandleEnd(s, false)
  /* WorkerEnds::OnProcessGone */
  :: gone[s] != 0 -> WorkerDead(s)
  /* Engine::Handoff: this worker is to take over. */
  :: handoffs < HANDOFFS && CAN_SERVE(s) && owner != s && owner != NOBODY && handoff_id == 0 ->
    atomic { handoffs++; handoff_id = worker_id[s]; asked_epoch = epoch; release_requested = epoch }
  fi
}

#ifdef UPGRADE
/* Engine::OnFirstCommit: every owner commits once as soon as it has adopted. */
#define FIRST_COMMIT (first_commit_due && owner != NOBODY && adopted == epoch)
inline OnFirstCommit() {
  atomic {
    first_commit_due = false;
    if
    :: handoff_id != 0 && release_requested == 0 ->
      if
      :: handoff_id == owner_id -> FINISH_HANDOFF(MOVED)
      :: else -> FINISH_HANDOFF(NOT_MOVED)
      fi
    :: else
    fi
  }
}

/* Engine::Handoff, as MoveShards asks for it. */
inline Handoff(s) {
  if
  :: !CAN_SERVE(s) || handoff_id != 0 -> moves_end = NOT_MOVED
  :: CAN_SERVE(s) && handoff_id == 0 && owner == s -> moves_end = MOVED
  :: CAN_SERVE(s) && handoff_id == 0 && owner == NOBODY -> handoff_id = worker_id[s]; Assign()
  :: CAN_SERVE(s) && handoff_id == 0 && owner != s && owner != NOBODY ->
    atomic { handoff_id = worker_id[s]; asked_epoch = epoch; release_requested = epoch }
  fi
}

/* Engine::SetStanding: from now on the shard is not to be the old one's again. */
#define STEP_BACK \
  assert(owner == NEW); /* U2 */ \
  first[OLD] = false

/* What the management loop has posted. */
inline RunPosted() {
  if
  :: posted == HAND_TO_NEW -> Handoff(NEW)
  :: posted == HAND_TO_OLD -> Handoff(OLD)
  :: posted == CANCEL ->
    /* Engine::CancelHandoff */
    if
    :: atomic { handoff_id != 0 -> FINISH_HANDOFF(NOT_MOVED); release_requested = 0 }
    :: else
    fi
  :: posted == LOOK -> owner_seen = owner
  :: posted == PROMOTE ->
    /* PromoteOwners: looked at and decided in one turn. */
    atomic {
      owner_seen = owner;
      if
      :: owner == NEW -> first[NEW] = true; STEP_BACK
      :: else
      fi
    }
  :: posted == NEW_FIRST -> first[NEW] = true
  :: posted == OLD_LAST -> atomic { STEP_BACK }
  :: posted == STOP_NEW -> stop_asked[NEW] = true
  :: posted == STOP_OLD -> stop_asked[OLD] = true
  fi;
  posted = 0
}
#endif

/* Engine::Loop: one thing after the other. */
proctype Engine() {
  byte t_epoch, t_tail, outcome, chosen, next, i;
  Entry copy;
end:
  do
  /* Engine::ApplyCommits */
  :: owner != NOBODY && PUBLISHED ->
#ifdef UPGRADE
    if
    :: FIRST_COMMIT -> OnFirstCommit()
    :: else
    fi;
#endif
    ApplyNext();
    if
    :: outcome == OUT_RELEASED ->
      /* Who gives it back without being asked wants none. */
      if
      :: asked_epoch != epoch -> ready[owner] = false
      :: else
      fi;
#ifndef UPGRADE
      handoff_id = 0;
#endif
      EndOwnership(true);
      Assign()
    :: outcome == OUT_INVALID ->
      /* Engine::OnInvalidCommit, Keeper::OnFenced, WorkerEnds::Kill */
      atomic { i = owner; fenced[i] = true; killed[i] = true };
      HandleEnd(i, true);
      i = 0
    :: else
    fi;
    outcome = OUT_IDLE

#ifdef UPGRADE
  :: FIRST_COMMIT -> OnFirstCommit()
  :: posted != 0 -> RunPosted()
#else
  /* Engine::CancelHandoff: it took too long. */
  :: atomic { handoff_id != 0 && owner != NOBODY -> handoff_id = 0; release_requested = 0 }
#endif

  :: ready_posted[0] != 0 || death_posted[0] != 0 || gone[0] != 0 ||
     (handoffs < HANDOFFS && CAN_SERVE(0) && owner != 0 && owner != NOBODY && handoff_id == 0) ->
    ServeSlot(0)
#if SLOTS > 1
  :: ready_posted[1] != 0 || death_posted[1] != 0 || gone[1] != 0 ||
     (handoffs < HANDOFFS && CAN_SERVE(1) && owner != 1 && owner != NOBODY && handoff_id == 0) ->
    ServeSlot(1)
#endif
#if SLOTS > 2
  :: ready_posted[2] != 0 || death_posted[2] != 0 || gone[2] != 0 ||
     (handoffs < HANDOFFS && CAN_SERVE(2) && owner != 2 && owner != NOBODY && handoff_id == 0) ->
    ServeSlot(2)
#endif
  od
}

#ifdef UPGRADE
/* ================================================================ an upgrade: the management loop */

/* Engine::Run: waits until it is done. What was posted before comes first. */
inline Run(work) {
  atomic { posted == 0 -> posted = work };
  posted == 0
}

/* WorkerEnds::Kill */
inline Kill(s) {
  killed[s] = (worker_id[s] != 0)
}

inline OnGone(s) {
  atomic { told_gone[s] = false; knows[s] = false }
}

/* Upgrades. Between two steps of it, the engine and everybody else go on. */
proctype Upgrades() {
  bool unwell;

  /* Begin: there is a worker whose place the new one takes. */
end_start:
  CAN_SERVE(OLD);
  phase = STARTING;
  do
  :: told_gone[OLD] -> OnGone(OLD)
  :: told_gone[NEW] -> OnGone(NEW); goto give_back
  :: CAN_SERVE(NEW) && !ill -> break /* Advance */
  :: goto give_back                  /* it took too long */
  od;

  /* HandOver */
  atomic { phase = HANDING_OVER; moving = true; moves_end = 0; posted == 0 -> posted = HAND_TO_NEW };
  do
  :: told_gone[OLD] -> OnGone(OLD)
  :: told_gone[NEW] -> OnGone(NEW); phase = RETURNING /* Return, when it is over */
  :: moves_end == 0 && posted == 0 -> posted = CANCEL /* it took too long */
  :: moves_end != 0 && posted == 0 ->
    moving = false; /* OnHandedOver */
    if
    :: phase == HANDING_OVER && moves_end == MOVED -> break
    :: else -> goto give_back
    fi
  od;

  phase = WATCHING;
watch:
  do
  :: told_gone[OLD] -> OnGone(OLD)
  :: told_gone[NEW] ->
    OnGone(NEW);
    goto give_back
  :: true -> /* Tick, LookAtNewWorkers */
#ifdef MUTANT_HEALTH_NOT_WATCHED
    atomic { ill_then = ill; unwell = false };
#else
    atomic { ill_then = ill; unwell = ill };
#endif
    if
    :: atomic { unwell -> unwell = false; ill_then = false }; goto give_back
    :: else
    fi;
    Run(LOOK);
    if
    :: owner_seen == OLD -> goto give_back
    :: atomic { owner_seen != OLD -> owner_seen = 0; ill_then = false }
    :: owner_seen != OLD -> break /* the window is over */
    fi
  od;

  /* Retire */
  atomic { owner_seen = 0; assert(!ill_then) /* U3 */ };
#ifdef MUTANT_RETIRED_AFTER_THE_LOOK
  Run(NEW_FIRST);
  Run(OLD_LAST);
#else
  Run(PROMOTE);
  if
  :: atomic { owner_seen != NEW -> owner_seen = 0 }; goto watch
  :: else
  fi;
#endif
  atomic { owner_seen = 0; phase = RETIRING };
  Run(STOP_OLD);
  do
  :: told_gone[NEW] -> OnGone(NEW)
  :: told_gone[OLD] -> OnGone(OLD)
  :: knows[OLD] && !killed[OLD] && !told_gone[OLD] -> Kill(OLD) /* KillOverdue */
  :: !knows[OLD] -> break
  od;
  phase = COMPLETED;
  goto over;

  /* Return */
give_back:
  if
  :: !knows[OLD] && knows[NEW] -> Run(NEW_FIRST); phase = FAILED; goto over
  :: else
  fi;
  phase = RETURNING;
  Run(LOOK);
  if
  :: atomic {
       owner_seen == NEW && knows[OLD] && knows[NEW] ->
       owner_seen = 0; moves_end = 0; posted = HAND_TO_OLD
     };
    do
    :: told_gone[OLD] -> OnGone(OLD)
    :: told_gone[NEW] -> OnGone(NEW)
    :: moves_end == 0 && posted == 0 -> posted = CANCEL
    :: moves_end != 0 && posted == 0 -> break
    od
  :: else -> atomic { owner_seen = 0; moves_end = MOVED }
  fi;
  /* OnReturned */
  if
#ifndef MUTANT_NEW_ENDED_WITHOUT_A_LOOK
  :: !knows[OLD] && knows[NEW] -> goto give_back
#endif
  :: else
  fi;
  if
  :: moves_end == MOVED && knows[NEW] ->
    assert(knows[OLD]); /* U4 */
    Run(STOP_NEW)       /* End */
  :: moves_end != MOVED && knows[NEW] -> Kill(NEW)
  :: !knows[NEW]
  fi;
#ifndef MUTANT_END_NOT_AWAITED
  do
  :: told_gone[OLD] -> OnGone(OLD)
  :: told_gone[NEW] -> OnGone(NEW)
  :: knows[NEW] && !killed[NEW] && !told_gone[NEW] -> Kill(NEW) /* KillOverdue */
  :: !knows[NEW] -> break
  od;
#endif
  assert(owner != NEW); /* U5 */
  phase = ROLLED_BACK;

over:
  /* Finish. Who is told of now is nobody's concern any more. */
end_over:
  do
  :: told_gone[OLD] -> OnGone(OLD)
  :: told_gone[NEW] -> OnGone(NEW)
  od
}
#endif

/* ================================================================ everything else */

/* Workers crash, or hang and are killed, at any time. */
proctype Fate() {
end:
  do
#ifdef UPGRADE
  :: atomic { illnesses < ILLNESSES && CAN_SERVE(NEW) && !ill -> illnesses++; ill = true }
#endif
#ifdef LIARS
  :: atomic { liars < LIARS && watched[0] != 0 && lock_of_writer[0] == HELD && !killed[0] ->
              liars++; lock_of_writer[0] = DIED; lock_of_other[0] = DIED }
#endif
  :: atomic { kills < KILLS && worker_id[0] != 0 && !killed[0] && gone[0] == 0 ->
              kills++; killed[0] = true;
#ifdef UPGRADE
              old_failed = true
#endif
            }
#if SLOTS > 1
  :: atomic { kills < KILLS && worker_id[1] != 0 && !killed[1] && gone[1] == 0 ->
              kills++; killed[1] = true }
#endif
#if SLOTS > 2
  :: atomic { kills < KILLS && worker_id[2] != 0 && !killed[2] && gone[2] == 0 ->
              kills++; killed[2] = true }
#endif
  od
}

#if SLOTS > 2
#define ANY_READY (CAN_SERVE(0) || CAN_SERVE(1) || CAN_SERVE(2))
#elif SLOTS > 1
#define ANY_READY (CAN_SERVE(0) || CAN_SERVE(1))
#else
#define ANY_READY CAN_SERVE(0)
#endif

/* A5: when nothing moves any more. */
proctype Monitor() {
  timeout;
  assert(!TRUSTED || !ANY_READY || owner != NOBODY);
  assert(!TRUSTED || !ANY_READY || acknowledged == INPUTS);
  assert(!TRUSTED || state[state_slot] == committed_state);
#ifdef UPGRADE
  /* U6 */
  assert(phase == NOT_ASKED || phase >= COMPLETED);
  assert(phase == NOT_ASKED || phase == COMPLETED || ANY_READY || old_failed)
#endif
}

init {
  atomic {
    run Engine();
    run DeathWatcher();
    run Fate();
    run Monitor();
#ifdef UPGRADE
    run Upgrades();
#endif
    run Worker(0);
    run OtherThread(0);
#if SLOTS > 1
    run Worker(1);
    run OtherThread(1);
#endif
#if SLOTS > 2
    run Worker(2);
    run OtherThread(2)
#endif
  }
}
