// A suite of the benchmark, run small by a test: what it measured.
#ifndef TESTS_BENCH_SUITE_RUN_H_
#define TESTS_BENCH_SUITE_RUN_H_

#include <sys/wait.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "google/protobuf/struct.pb.h"
#include "google/protobuf/util/json_util.h"
#include "lib/base/status.h"
#include "tests/harness/binaries.h"
#include "tests/harness/child_process.h"
#include "tests/harness/temp_directory.h"

namespace baton::bench {

struct SuiteRun {
  std::map<std::string, double> figures, ratios;
  std::vector<std::string> not_measured;  // of both
  bool has_plots = false;
};

// Returns the "value" of each field of the object called `kind`. Adds the names of the fields that
// have none to `not_measured`.
inline std::map<std::string, double> ValuesOf(const google::protobuf::Struct& json,
                                              const char* kind,
                                              std::vector<std::string>* not_measured) {
  std::map<std::string, double> values;
  const auto found = json.fields().find(kind);
  if (found == json.fields().end()) return values;
  for (const auto& [name, field] : found->second.struct_value().fields()) {
    const auto value = field.struct_value().fields().find("value");
    if (value != field.struct_value().fields().end() && value->second.has_number_value()) {
      values[name] = value->second.number_value();
    } else {
      not_measured->push_back(name);
    }
  }
  return values;
}

// Runs `name`_bench with one round and these arguments. An error carries its log.
inline absl::StatusOr<SuiteRun> RunSuite(const std::string& name,
                                         std::vector<std::string> arguments) {
  constexpr std::chrono::seconds kLong{120};
  BATON_ASSIGN_OR_RETURN(const harness::TempDirectory directory, harness::TempDirectory::Create());
  harness::ChildOptions options;
  BATON_ASSIGN_OR_RETURN(options.program, harness::Binaries().Find(name + "_bench"));
  options.log_path = directory.File("log");
  options.arguments = std::move(arguments);
  options.arguments.insert(options.arguments.end(),
                           {"--rounds", "1", "--output", directory.path()});
  BATON_ASSIGN_OR_RETURN(const std::unique_ptr<harness::ChildProcess> suite,
                         harness::ChildProcess::Start(options));
  BATON_ASSIGN_OR_RETURN(const int status, suite->WaitEnd(kLong));
  if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
    return absl::InternalError(absl::StrCat(name, "_bench failed: ", suite->LogTail()));
  }
  std::ifstream file(absl::StrCat(directory.path(), "/", name, ".json"));
  const std::string text((std::istreambuf_iterator<char>(file)), {});
  google::protobuf::Struct json;
  if (!google::protobuf::util::JsonStringToMessage(text, &json).ok()) {
    return absl::DataLossError("not JSON: " + text.substr(0, 400));
  }
  SuiteRun run;
  run.figures = ValuesOf(json, "figures", &run.not_measured);
  run.ratios = ValuesOf(json, "ratios", &run.not_measured);
  for (const auto& entry : std::filesystem::directory_iterator(directory.path())) {
    run.has_plots = run.has_plots || entry.path().extension() == ".svg";
  }
  return run;
}

}  // namespace baton::bench

#endif  // TESTS_BENCH_SUITE_RUN_H_
