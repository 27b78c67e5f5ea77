// baton-get: fetches a file or a tree from filed.
//   baton-get HOST:PORT[/PATH] [-o DIRECTORY] [--resume | --verify]
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <iostream>
#include <memory>
#include <string>
#include <thread>

#include "CLI/CLI.hpp"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "lib/base/status.h"
#include "lib/text/text.h"
#include "worker/examples/common/device_factory.h"
#include "worker/examples/filed/download.h"
#include "worker/examples/filed/get_client.h"
#include "worker/examples/filed/get_progress.h"
#include "worker/examples/filed/local_tree.h"

namespace baton::filed {
namespace {

constexpr size_t kMostTextBytes = 2 * kMaxPathBytes;  // of a line about a file

struct Flags {
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

absl::StatusOr<Totals> Get(const Flags& flags) {
  BATON_ASSIGN_OR_RETURN(const Source source, ParseSource(flags.source));
  BATON_ASSIGN_OR_RETURN(LocalTree tree,
                         LocalTree::Open(flags.directory, /*make=*/!flags.download.verify));
  BATON_ASSIGN_OR_RETURN(std::unique_ptr<verbs::Device> device, examples::OpenDevice(flags.device));
  BATON_ASSIGN_OR_RETURN(const std::unique_ptr<GetClient> client,
                         GetClient::Connect(std::move(device), source.address,
                                            std::chrono::milliseconds(flags.patience_ms)));
  GetProgress progress(STDERR_FILENO, flags.quiet);
  const auto complain = [&](const std::string& path, const std::string& reason) {
    progress.Clear();
    std::cerr << "baton-get: " << OneLine(path.empty() ? "/" : path, kMostTextBytes) << ": "
              << OneLine(reason, kMostTextBytes) << std::endl;
  };
  const auto report = [&](const Totals& totals, const std::string& path) {
    progress.Update(totals, path);
    LimitRate(totals, progress, flags.rate);
  };
  Download download(client.get(), &tree, flags.download, complain, report);
  const absl::Status status = download.Run(source.path);
  progress.Clear();
  std::cout << Summary(download.totals(), flags.download, progress.seconds()) << std::endl;
  if (!status.ok()) return status;
  return download.totals();
}

int Main(int argc, char** argv) {
  Flags flags;
  CLI::App app{
      "baton-get: fetches a file, or all that is below a directory, from filed.\n"
      "Every piece is checked by its CRC32C. A file is written beside its place and gets its name\n"
      "when it is complete."};
  app.add_option("SOURCE", flags.source, "HOST:PORT[/PATH]")->required();
  app.add_option("-o,--output", flags.directory, "directory to write into [.]");
  CLI::Option* const resume = app.add_flag(
      "--resume", flags.download.resume,
      "leave files that are here with the server's size and time, and go on with parts");
  app.add_flag("--verify", flags.download.verify,
               "write nothing: have all sent, and compare it with the files that are here")
      ->excludes(resume);
  app.add_option("--device", flags.device, "soft, rdma, or rdma:NAME [soft]");
  app.add_option("--range-bytes", flags.download.range_bytes, "of one request [8388608]")
      ->check(CLI::Range(uint64_t{4096}, uint64_t{1} << 40));
  app.add_option("--limit-rate", flags.rate, "bytes a second, at most; 1 MiB or more [no limit]")
      ->check(CLI::Range(uint64_t{1} << 20, uint64_t{1} << 40));
  app.add_option("--patience-ms", flags.patience_ms,
                 "give up when the server says nothing for so long [120000]");
  app.add_flag("--quiet", flags.quiet, "no progress");
  CLI11_PARSE(app, argc, argv);

  const absl::StatusOr<Totals> totals = Get(flags);
  if (totals.ok()) return totals->failed == 0 ? 0 : 1;
  std::cerr << "baton-get: " << OneLine(MessageOf(totals.status()), kMostTextBytes) << std::endl;
  return 1;
}

}  // namespace
}  // namespace baton::filed

int main(int argc, char** argv) { return baton::filed::Main(argc, argv); }
