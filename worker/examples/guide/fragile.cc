// Chapter 4: a program with three defects, for watching what Baton does about each.
#include <unistd.h>

#include <cstdlib>
#include <string>
#include <string_view>

#include "worker/examples/guide/reply_service.h"

namespace baton::guide {
namespace {

class Fragile final : public ReplyService {
  absl::StatusOr<std::string> Reply(Shard& shard, Connection&,
                                    const std::string& message) override {
    if (message == "crash") std::abort();
    while (message == "hang") pause();
    if (message == "sick") shard.worker().ReportHealth(false, "a peer made it sick");
    if (message == "well") shard.worker().ReportHealth(true, "");
    return message;
  }
};

}  // namespace
}  // namespace baton::guide

int main(int argc, char** argv) {
  baton::guide::Fragile fragile;
  return baton::guide::Serve(
      fragile, {.service = "counter", .commit_mode = baton::CommitMode::kAfterEachCompletion}, argc,
      argv);
}
