// A reload for which some keepers have not answered yet.
#ifndef SUPERVISOR_BATOND_RELOAD_UNDER_WAY_H_
#define SUPERVISOR_BATOND_RELOAD_UNDER_WAY_H_

#include <cstddef>
#include <functional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/baton/internal/control.pb.h"
#include "proto/baton/internal/keeper.pb.h"
#include "supervisor/config/reload.h"

namespace baton {

// Puts the answer of `running`'s keeper into `taken`: the configuration that is in force, and the
// fields that the keeper did not take. After an error the keeper goes on with `running`.
void NoteAnswer(const v1::ServiceConfig& running,
                const absl::StatusOr<internal::ConfigTaken>& answer, TakenConfig* taken);

// Returns the answer for control and operators, without the configuration.
internal::BatondReply DescribeReload(const TakenConfig& taken);

struct ReloadUnderWay {
  using Done = std::function<void(absl::StatusOr<internal::BatondReply>)>;

  TakenConfig taken;
  size_t unanswered = 0;  // keepers
  Done done;
};

}  // namespace baton

#endif  // SUPERVISOR_BATOND_RELOAD_UNDER_WAY_H_
