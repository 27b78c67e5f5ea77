#include "worker/examples/filed/filed_program.h"

#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "lib/base/status.h"
#include "spdlog/sinks/stdout_sinks.h"
#include "spdlog/spdlog.h"
#include "worker/examples/common/flags.h"
#include "worker/examples/common/worker_program.h"
#include "worker/examples/filed/filed_service.h"

namespace baton::filed {
namespace {

constexpr char kProgram[] = "filed";  // its name in its ready line

struct Arguments {
  examples::WorkerFlags worker;
  FiledServiceOptions filed;
  bool no_io_uring = false;
};

absl::Status Serve(const Arguments& arguments, uint32_t version) {
  FiledServiceOptions filed = arguments.filed;
  filed.reads.use_io_uring = !arguments.no_io_uring;
  FiledService service(filed);
  WorkerOptions options = examples::OptionsOf(arguments.worker);
  options.version = absl::StrCat("v", version);
  options.reads_state_version_min = options.reads_state_version_max = kFiledStateVersion;
  options.writes_state_version = kFiledStateVersion;
  options.commit_mode = CommitMode::kAfterEachCompletion;
  BATON_ASSIGN_OR_RETURN(const std::unique_ptr<Worker> worker, Worker::Attach(options, &service));
  BATON_RETURN_IF_ERROR(service.Start(*worker));
  return examples::ServeUntilAsked(*worker, arguments.worker, kProgram, version,
                                   [](uint16_t) { return absl::OkStatus(); });
}

}  // namespace

int Main(uint32_t version, int argc, char** argv) {
  const std::string name = "filed-v" + std::to_string(version);
  spdlog::set_default_logger(spdlog::stderr_logger_st(name));
  spdlog::flush_on(spdlog::level::info);
  Arguments arguments;
  arguments.worker.service = kProgram;
  examples::Flags flags(
      "filed: serves the files below a directory to baton-get, as a service on Baton.");
  examples::AddWorkerFlags(flags, kProgram, arguments.worker);
  flags
      .Add("--directory", &arguments.filed.directory,
           "what is served; no symbolic link below it is followed")
      .Required();
  flags.Add("--piece-bytes", &arguments.filed.sender.piece_bytes,
            "of a message, a multiple of 4096 [65536]");
  flags.Add("--depth", &arguments.filed.sender.depth, "pieces of a file at once [4]");
  flags.Add("--memory-bytes", &arguments.filed.reads.most_bytes,
            "of the heaps, for pieces of all clients together [8388608]");
  flags.Switch("--no-io-uring", &arguments.no_io_uring, "read files by pread, while clients wait");
  if (const std::optional<int> exit_status = flags.Parse(argc, argv)) return *exit_status;

  const absl::Status status = Serve(arguments, version);
  if (status.ok()) return 0;
  spdlog::error("{}", std::string(status.message()));
  return 1;
}

}  // namespace baton::filed
