#ifndef SUPERVISOR_BATOND_ORPHANS_H_
#define SUPERVISOR_BATOND_ORPHANS_H_

namespace baton {

// Reaps unmappers of native workers (lib/native/unmapper.h) and NICs of dead drivers (baton-nic)
// that have ended. A process whose parent is dead is the init process's child, which batond is in a
// pid namespace of its own. Other children are left to those who wait for them. Never waits.
void ReapOrphans();

}  // namespace baton

#endif  // SUPERVISOR_BATOND_ORPHANS_H_
