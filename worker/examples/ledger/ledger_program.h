// The ledger as a program: a worker of Baton with its command line.
#ifndef WORKER_EXAMPLES_LEDGER_LEDGER_PROGRAM_H_
#define WORKER_EXAMPLES_LEDGER_LEDGER_PROGRAM_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "worker/examples/common/flags.h"
#include "worker/examples/ledger/ledger_service.h"
#include "worker/worker.h"

namespace baton::ledger {

class LedgerProgram {
 public:
  // `version` is named in every reply.
  LedgerProgram(std::string name, uint16_t version) : name_(std::move(name)), version_(version) {}
  virtual ~LedgerProgram() = default;

  // Serves until it is asked to end. Returns the exit status.
  int Main(int argc, char** argv);

  // Adds the flags of a program that derives from this one.
  virtual void AddFlags([[maybe_unused]] examples::Flags& flags,
                        [[maybe_unused]] LedgerServiceOptions& options) {}
  virtual std::unique_ptr<LedgerService> MakeService(const LedgerServiceOptions& options) {
    return std::make_unique<LedgerService>(options);
  }
  // Called when the worker has attached and is not ready for shards yet.
  virtual absl::Status BeforeReady([[maybe_unused]] Worker& worker) { return absl::OkStatus(); }

 private:
  const std::string name_;
  const uint16_t version_;
};

}  // namespace baton::ledger

#endif  // WORKER_EXAMPLES_LEDGER_LEDGER_PROGRAM_H_
