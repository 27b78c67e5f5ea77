#include "tests/bench/worker_main.h"

#include <cstdio>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "lib/base/status.h"
#include "worker/examples/common/flags.h"
#include "worker/worker.h"

namespace baton::bench {
namespace {

absl::Status AttachAndServe(const WorkerOptions& options, const std::string& host,
                            Service* service) {
  BATON_ASSIGN_OR_RETURN(const std::unique_ptr<Worker> worker, Worker::Attach(options, service));
  BATON_ASSIGN_OR_RETURN(const uint16_t port, worker->Listen(host, 0));
  BATON_RETURN_IF_ERROR(worker->Ready());
  std::printf("bench server ready port=%u\n", unsigned{port});
  std::fflush(stdout);
  return worker->Run();
}

}  // namespace

int ServeWorker(int argc, char** argv, const std::string& program, const std::string& description,
                Service* service) {
  WorkerOptions options;
  std::string host;
  examples::Flags flags(description);
  flags.Add("--socket", &options.socket, "the service's socket").Required();
  flags.Add("--service", &options.service, "name of the service").Required();
  flags.Add("--host", &host, "IPv4 address to listen on").Required();
  flags.Add("--yield-microseconds", &options.yield_microseconds,
            "how long it yields before it sleeps");
  if (const std::optional<int> exit_status = flags.Parse(argc, argv)) return *exit_status;
  const absl::Status status = AttachAndServe(options, host, service);
  if (status.ok()) return 0;
  std::fprintf(stderr, "%s: %s\n", program.c_str(), std::string(status.message()).c_str());
  return 1;
}

}  // namespace baton::bench
