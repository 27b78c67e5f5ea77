// baton-get: fetches a file or a tree from filed.
//   baton-get HOST:PORT[/PATH] [-o DIRECTORY] [--resume | --verify]
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <iostream>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "lib/base/status.h"
#include "lib/text/text.h"
#include "worker/examples/common/device_factory.h"
#include "worker/examples/common/flags.h"
#include "worker/examples/filed/download.h"
#include "worker/examples/filed/get_client.h"
#include "worker/examples/filed/get_progress.h"
#include "worker/examples/filed/local_tree.h"

namespace baton::filed {
namespace {

constexpr size_t kMostTextBytes = 2 * kMaxPathBytes;  // of a line about a file

struct Arguments {
  std::string source;
  std::string directory = ".";
  std::string device = "soft";
  uint64_t patience_ms = 120'000;
  uint64_t rate = 0;  // bytes a second; 0: no limit
  bool quiet = false;
  DownloadOptions download;
};

struct Source {
  verbs::Address address;
  std::string path;
};

// HOST:PORT[/PATH]; slashes at the end of the path count for nothing.
absl::StatusOr<Source> ParseSource(const std::string& text) {
  const size_t slash = text.find('/');
  Source source;
  BATON_ASSIGN_OR_RETURN(source.address, examples::ParseAddress(text.substr(0, slash)));
  if (slash != std::string::npos) source.path = text.substr(slash + 1);
  while (source.path.ends_with('/')) source.path.pop_back();
  if (IsPlainPath(source.path)) return source;
  return absl::InvalidArgumentError(
      absl::StrCat("the path after HOST:PORT has to be below the served directory, without \"..\", "
                   "and at most ",
                   kMaxPathBytes, " bytes long"));
}

std::string Summary(const Totals& totals, const DownloadOptions& options, double seconds) {
  std::string text =
      absl::StrFormat("%d files, %s, and %d directories %s in %.1f s, over one connection",
                      totals.files_done, FormatBytes(totals.bytes_done), totals.directories,
                      options.verify ? "compared" : "fetched", seconds);
  if (totals.bytes_kept > 0) {
    absl::StrAppend(&text, "; ", FormatBytes(totals.bytes_kept), " of them, and ",
                    totals.files_kept, " whole files, were here");
  }
  if (totals.failed > 0) absl::StrAppend(&text, "; ", totals.failed, " failed");
  return text;
}

// Holds the download up until it is not faster than `rate`. The server waits meanwhile, since the
// stream's ring is full.
void LimitRate(const Totals& totals, const GetProgress& progress, uint64_t rate) {
  constexpr std::chrono::milliseconds kPause{2};
  if (rate == 0) return;
  const auto fetched = static_cast<double>(totals.bytes_done - totals.bytes_kept);
  while (fetched > static_cast<double>(rate) * progress.seconds()) {
    std::this_thread::sleep_for(kPause);
  }
}

absl::StatusOr<Totals> Get(const Arguments& arguments) {
  BATON_ASSIGN_OR_RETURN(const Source source, ParseSource(arguments.source));
  BATON_ASSIGN_OR_RETURN(LocalTree tree,
                         LocalTree::Open(arguments.directory, /*make=*/!arguments.download.verify));
  BATON_ASSIGN_OR_RETURN(std::unique_ptr<verbs::Device> device,
                         examples::OpenDevice(arguments.device));
  BATON_ASSIGN_OR_RETURN(const std::unique_ptr<GetClient> client,
                         GetClient::Connect(std::move(device), source.address,
                                            std::chrono::milliseconds(arguments.patience_ms)));
  GetProgress progress(STDERR_FILENO, arguments.quiet);
  const auto complain = [&](const std::string& path, const std::string& reason) {
    progress.Clear();
    std::cerr << "baton-get: " << OneLine(path.empty() ? "/" : path, kMostTextBytes) << ": "
              << OneLine(reason, kMostTextBytes) << std::endl;
  };
  const auto report = [&](const Totals& totals, const std::string& path) {
    progress.Update(totals, path);
    LimitRate(totals, progress, arguments.rate);
  };
  Download download(client.get(), &tree, arguments.download, complain, report);
  const absl::Status status = download.Run(source.path);
  progress.Clear();
  std::cout << Summary(download.totals(), arguments.download, progress.seconds()) << std::endl;
  if (!status.ok()) return status;
  return download.totals();
}

int Main(int argc, char** argv) {
  Arguments arguments;
  examples::Flags flags(
      "baton-get: fetches a file, or all that is below a directory, from filed.\n"
      "Every piece is checked by its CRC32C. A file is written beside its place and gets its name\n"
      "when it is complete.");
  flags.Add("SOURCE", &arguments.source, "HOST:PORT[/PATH]").Required();
  flags.Add("-o,--output", &arguments.directory, "directory to write into [.]");
  const examples::Flag resume = flags.Switch(
      "--resume", &arguments.download.resume,
      "leave files that are here with the server's size and time, and go on with parts");
  flags
      .Switch("--verify", &arguments.download.verify,
              "write nothing: have all sent, and compare it with the files that are here")
      .Excludes(resume);
  flags.Add("--device", &arguments.device, "soft, rdma, or rdma:NAME [soft]");
  flags.Add("--range-bytes", &arguments.download.range_bytes, "of one request [8388608]")
      .Within(uint64_t{4096}, uint64_t{1} << 40);
  flags.Add("--limit-rate", &arguments.rate, "bytes a second, at most; 1 MiB or more [no limit]")
      .Within(uint64_t{1} << 20, uint64_t{1} << 40);
  flags.Add("--patience-ms", &arguments.patience_ms,
            "give up when the server says nothing for so long [120000]");
  flags.Switch("--quiet", &arguments.quiet, "no progress");
  if (const std::optional<int> exit_status = flags.Parse(argc, argv)) return *exit_status;

  const absl::StatusOr<Totals> totals = Get(arguments);
  if (totals.ok()) return totals->failed == 0 ? 0 : 1;
  std::cerr << "baton-get: " << OneLine(MessageOf(totals.status()), kMostTextBytes) << std::endl;
  return 1;
}

}  // namespace
}  // namespace baton::filed

int main(int argc, char** argv) { return baton::filed::Main(argc, argv); }
