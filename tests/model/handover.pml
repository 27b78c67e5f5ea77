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
 * Checked: every transaction that counts is applied once, in order and by its owner's epoch (A1);
 * there is one owner (A2); a state that was committed stays as it was written (A3); what an owner
 * published before it died is applied (A4); and when nothing can happen any more, a ready worker
 * owns the shard and has done everything (A5). */

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
byte commit_head;
byte acknowledged;
byte state_slot;
byte release_requested;

/* ---- The engine's own memory: Engine::Worker, Engine::ShardState, Ownership::writers_. */

byte worker_id[SLOTS];
bool ready[SLOTS], stopped[SLOTS], fenced[SLOTS];
byte writers[BANKS];
byte awaited_death_id;
byte handoff_id;

/* What other threads have posted to it: Engine::Post. */
byte ready_posted[SLOTS];   /* WorkerSessions::SetReady */
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

#define LOST (mine != 0 && (owner != me || epoch != mine))

proctype Worker(byte me) {
  byte life, id, mine, word, tail, seen, slot;
  byte given_back; /* Shard::released_epoch_ */

  do
  :: life == LIVES -> break
  :: else ->
    /* WorkerSessions::Attach, Engine::AddWorker: in a free slot, with fresh locks. */
end_attach:
    atomic {
      worker_id[me] == 0 && ready_posted[me] == 0;
      id = me * LIVES + life + 1;
      life++;
      worker_id[me] = id; ready[me] = false; stopped[me] = false; fenced[me] = false;
      lock_of_writer[me] = HELD; lock_of_other[me] = HELD;
      killed[me] = false; gone[me] = 0;
      mine = 0; tail = 0; seen = 0; slot = 0; given_back = 0;
      /* WorkerSessions::SetReady */
      watched[me] = id;
      ready_posted[me] = id
    }
end_serve:
    do
    :: killed[me] -> goto dying

    /* WorkerImpl::HandleOwnership and Adopt. What it gave back is its own by this word until the
     * driver has seen it, and it may be slow between the two looks. */
    :: atomic { mine == 0 && owner == me -> word = epoch };
      if
      :: killed[me] -> goto dying
      :: atomic { FRESH(word) -> mine = word; tail = 0; word = 0 };
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

    /* It goes mad, and goes on with its work afterwards: it does not know. */
    :: atomic {
         mine != 0 && madness < MADNESS && tail - commit_head < ROOM -> madness++;
         was_mad[mine] = true
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
    owner = NOBODY;
    owner_id = 0;
    outcome = OUT_IDLE
  }
}

#define CAN_SERVE(s) (worker_id[s] != 0 && ready[s] && !stopped[s])

/* Engine::Assign, Ownership::NextEpoch, CanGrant and Grant. */
inline Assign() {
  if
  :: awaited_death_id == 0 && owner == NOBODY ->
    atomic {
      if
      :: CAN_SERVE(0) -> chosen = 0
#if SLOTS > 1
      :: CAN_SERVE(1) -> chosen = 1
#endif
#if SLOTS > 2
      :: CAN_SERVE(2) -> chosen = 2
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

/* Engine::StopWorker. */
inline StopWorker(s, await_death) {
  stopped[s] = true;
  if
  :: handoff_id == worker_id[s] -> handoff_id = 0; release_requested = 0
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

/* Engine::WorkerDead; only then the slot serves again (WorkerSessions::OnProcessGone). */
inline WorkerDead(s) {
  if
  :: !stopped[s] -> StopWorker(s, false)
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
  /* Engine::WorkerStopped: the locks say that nothing of it runs. */
  :: death_posted[s] != 0 && (worker_id[s] != death_posted[s] || stopped[s]) -> death_posted[s] = 0
  :: death_posted[s] != 0 && worker_id[s] == death_posted[s] && !stopped[s] ->
    death_posted[s] = 0;
    StopWorker(s, false)
  /* WorkerSessions::OnProcessGone */
  :: gone[s] != 0 -> WorkerDead(s)
  /* Engine::Handoff: this worker is to take over. */
  :: handoffs < HANDOFFS && CAN_SERVE(s) && owner != s && owner != NOBODY && handoff_id == 0 ->
    atomic { handoffs++; handoff_id = worker_id[s]; release_requested = epoch }
  fi
}

/* Engine::Loop: one thing after the other. */
proctype Engine() {
  byte t_epoch, t_tail, outcome, chosen, next, i;
  Entry copy;
end:
  do
  /* Engine::ApplyCommits */
  :: owner != NOBODY && PUBLISHED ->
    ApplyNext();
    if
    :: outcome == OUT_RELEASED ->
      /* Who gives it back without being asked wants none. */
      if
      :: release_requested != epoch && handoff_id == 0 -> ready[owner] = false
      :: else
      fi;
      handoff_id = 0;
      EndOwnership(true);
      Assign()
    :: outcome == OUT_INVALID ->
      /* Engine::OnInvalidCommit, Keeper::OnFenced, WorkerSessions::Kill */
      atomic { i = owner; fenced[i] = true; killed[i] = true };
      StopWorker(i, true);
      i = 0
    :: else
    fi;
    outcome = OUT_IDLE

  /* Engine::CancelHandoff: it took too long. */
  :: atomic { handoff_id != 0 && owner != NOBODY -> handoff_id = 0; release_requested = 0 }

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

/* ================================================================ everything else */

/* Workers crash, or hang and are killed, at any time. */
proctype Fate() {
end:
  do
#ifdef LIARS
  :: atomic { liars < LIARS && watched[0] != 0 && lock_of_writer[0] == HELD && !killed[0] ->
              liars++; lock_of_writer[0] = DIED; lock_of_other[0] = DIED }
#endif
  :: atomic { kills < KILLS && worker_id[0] != 0 && !killed[0] && gone[0] == 0 ->
              kills++; killed[0] = true }
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
  assert(!TRUSTED || state[state_slot] == committed_state)
}

init {
  atomic {
    run Engine();
    run DeathWatcher();
    run Fate();
    run Monitor();
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
