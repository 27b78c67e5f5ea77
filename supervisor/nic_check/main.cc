// baton-nic-check: checks whether native workers could own the queues of a device.
#include <infiniband/mlx5dv.h>
#include <infiniband/verbs.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "lib/base/status.h"
#include "supervisor/nic_check/nic_check.h"

namespace baton::nic_check {
namespace {

constexpr char kAbout[] =
    "Tries on an mlx5 device what native workers need of it: that Baton's driver writes what "
    "libmlx5 "
    "writes, and that a driver follows one that was killed exactly. It makes a few queue pairs "
    "that "
    "are connected to each other, and disturbs nobody else's.";

struct CloseContext {
  void operator()(ibv_context* context) const { ibv_close_device(context); }
};
using Context = std::unique_ptr<ibv_context, CloseContext>;

absl::StatusOr<Context> Open(const std::string& name) {
  int count = 0;
  ibv_device** const devices = ibv_get_device_list(&count);
  if (devices == nullptr) {
    return ErrnoStatus(errno, "this kernel has no RDMA devices (modprobe ib_uverbs)");
  }
  const std::unique_ptr<ibv_device*, void (*)(ibv_device**)> list(devices, &ibv_free_device_list);
  std::string names;
  for (int i = 0; i < count; ++i) {
    absl::StrAppend(&names, i == 0 ? "" : ", ", ibv_get_device_name(devices[i]));
    if (name != ibv_get_device_name(devices[i])) continue;
    if (!mlx5dv_is_supported(devices[i])) {
      return absl::InvalidArgumentError(
          absl::StrCat(name,
                       " is none of mlx5: native workers need no check there, or have no "
                       "driver (deploy/docs/rdma_devices.md)"));
    }
    Context context(ibv_open_device(devices[i]));
    if (context == nullptr) return ErrnoStatus(errno, absl::StrCat("ibv_open_device of ", name));
    return context;
  }
  return absl::NotFoundError(absl::StrCat("there is no device ", name,
                                          ", but: ", names.empty() ? std::string("none") : names));
}

absl::StatusOr<bool> Run(const std::string& name, const Options& options) {
  BATON_ASSIGN_OR_RETURN(const Context context, Open(name));
  BATON_ASSIGN_OR_RETURN(const std::unique_ptr<SharedMemory> shared,
                         SharedMemory::Make(kSharedBytes));
  BATON_ASSIGN_OR_RETURN(const std::vector<Finding> findings,
                         CheckNic(context.get(), options, shared.get()));
  bool all = true;
  for (const Finding& finding : findings) {
    std::printf("%-6s  %s: %s\n", finding.holds ? "holds" : "BROKEN", finding.name.c_str(),
                finding.text.c_str());
    all = all && finding.holds;
  }
  return all;
}

}  // namespace
}  // namespace baton::nic_check

int main(int argc, char** argv) {
  CLI::App app(baton::nic_check::kAbout, "baton-nic-check");
  std::string device;
  baton::nic_check::Options options;
  app.add_option("DEVICE", device, "name of the device, as ibv_devices tells it")->required();
  uint32_t port = options.port;
  app.add_option("--port", port, "port to loop through")
      ->check(CLI::Range(1, 254))
      ->capture_default_str();
  app.add_option("--gid-index", options.gid_index, "-1: the best that there is")
      ->check(CLI::Range(-1, 254))
      ->capture_default_str();
  app.add_option("--kills", options.kills, "drivers to kill, in each of three checks")
      ->capture_default_str();
  app.add_option("--seed", options.seed, "of the instants of kills")->capture_default_str();
  int64_t patience_ms = options.patience.count();
  app.add_option("--patience-ms", patience_ms, "for each thing that the device is to do")
      ->check(CLI::Range(1, 600'000))
      ->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  options.patience = std::chrono::milliseconds(patience_ms);
  (void)std::signal(SIGCHLD, SIG_DFL);  // the check waits for its children
  options.port = static_cast<uint8_t>(port);
  const absl::StatusOr<bool> all = baton::nic_check::Run(device, options);
  if (all.ok()) return *all ? 0 : 1;
  std::fprintf(stderr, "baton-nic-check: %s\n", all.status().ToString().c_str());
  return 2;
}
