// failover-worker: a ledger whose process has memory of its own besides, as real services have.
#include "worker/examples/common/ballast.h"
#include "worker/examples/common/flags.h"
#include "worker/examples/ledger/ledger_program.h"

namespace baton::bench {
namespace {

class FailoverWorker final : public ledger::LedgerProgram {
 public:
  FailoverWorker() : LedgerProgram("failover-worker", 1) {}

  void AddFlags(examples::Flags& flags, ledger::LedgerServiceOptions& options) override {
    flags.Add("--reply-version", &options.version, "told in every reply [1]");
    flags.Add("--ballast-mib", &ballast_mib_, "memory to map and touch besides [0]");
  }
  absl::Status BeforeReady(Worker&) override { return examples::TakeBallast(ballast_mib_); }

 private:
  uint32_t ballast_mib_ = 0;
};

}  // namespace
}  // namespace baton::bench

int main(int argc, char** argv) { return baton::bench::FailoverWorker().Main(argc, argv); }
