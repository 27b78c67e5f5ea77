#include <cerrno>
#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/algorithm/container.h"
#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "lib/base/status.h"
#include "supervisor/cli/command_options.h"
#include "supervisor/cli/commands.h"
#include "supervisor/cli/invocation.h"
#include "supervisor/config/state_files.h"

namespace baton {
namespace new_service {

// The files of worker/kit/template, in which @NAME@ stands for the name of the new service. The
// rule `new_service` of BUILD.bazel generates the source of these arrays, and names each `k_` and
// the file's name.
extern const char k_CMakeLists[];    // CMakeLists.txt
extern const char k_service[];       // @NAME@.cpp
extern const char k_service_test[];  // @NAME@_test.cpp

}  // namespace new_service

namespace {

struct Flags {
  std::string name;
  std::string directory;  // empty: one of that name
};

constexpr size_t kLongestName = 32;
// Targets that CMake has already.
constexpr const char* kTargets[] = {"all",     "clean",      "help", "install",
                                    "package", "preinstall", "test"};

// It becomes the name of a service, of files and of CMake's targets.
absl::Status CheckName(const std::string& name) {
  const bool fits = !name.empty() && name.size() <= kLongestName && absl::ascii_islower(name[0]) &&
                    absl::c_all_of(name, [](unsigned char c) {
                      return absl::ascii_islower(c) || absl::ascii_isdigit(c) || c == '-';
                    });
  if (!fits) {
    return absl::InvalidArgumentError(absl::StrCat(
        "\"", name,
        "\" cannot be the name of a service: it has to begin with a small letter, have at ",
        "most ", kLongestName, " characters, and only small letters, digits and -"));
  }
  if (IsReservedServiceName(name) || absl::c_linear_search(kTargets, name)) {
    return absl::InvalidArgumentError(
        absl::StrCat("\"", name, "\" is taken by Baton or CMake: choose another name"));
  }
  return absl::OkStatus();
}

// Makes the directory, or takes an empty one.
absl::Status MakeDirectory(const std::string& path) {
  std::error_code error;
  std::filesystem::create_directories(path, error);
  if (error) return ErrnoStatus(error.value(), absl::StrCat("cannot make the directory ", path));
  if (std::filesystem::is_empty(path, error)) return absl::OkStatus();
  return absl::AlreadyExistsError(absl::StrCat(path, " is not empty: name another --directory"));
}

absl::Status Write(const std::string& path, const char* text, const std::string& name) {
  std::ofstream file(path);
  file << absl::StrReplaceAll(text, {{"@NAME@", name}});
  file.close();
  if (!file) return ErrnoStatus(errno, absl::StrCat("cannot write ", path));
  return absl::OkStatus();
}

// Returns the word for a shell, which takes it as it is.
std::string Quoted(const std::string& word) {
  return absl::StrCat("'", absl::StrReplaceAll(word, {{"'", "'\\''"}}), "'");
}

absl::Status WriteService(Invocation* invocation, const Flags& flags) {
  BATON_RETURN_IF_ERROR(CheckName(flags.name));
  const std::string directory = flags.directory.empty() ? flags.name : flags.directory;
  BATON_RETURN_IF_ERROR(MakeDirectory(directory));
  const std::pair<std::string, const char*> files[] = {
      {"CMakeLists.txt", new_service::k_CMakeLists},
      {flags.name + ".cpp", new_service::k_service},
      {flags.name + "_test.cpp", new_service::k_service_test}};
  std::vector<std::string> written;
  for (const auto& [file, text] : files) {
    written.push_back(std::filesystem::path(directory) / file);
    BATON_RETURN_IF_ERROR(Write(written.back(), text, flags.name));
  }
  if (invocation->json) {
    invocation->out << nlohmann::json{{"files", written}}.dump(
                           2, ' ', false, nlohmann::json::error_handler_t::replace)
                    << '\n';
  } else {
    invocation->out << absl::StrJoin(written, "\n") << '\n';
  }
  invocation->PrintNext(absl::StrCat("cd ", Quoted(directory),
                                     " && cmake -B build && cmake --build build && "
                                     "ctest --test-dir build --output-on-failure"));
  return absl::OkStatus();
}

}  // namespace

void AddNewCommand(CLI::App* app, Invocation* invocation) {
  CLI::App* noun = AddNoun(app, "new", "Begin a service");
  CLI::App* service =
      noun->add_subcommand("service", "Write a small service, and a test that kills it");
  service->footer(
      "Writes CMakeLists.txt, NAME.cpp and NAME_test.cpp: a service that adds up what its peers "
      "send, and a test that kills it at each commit and at random, and hands its connections to "
      "a new process. They need the packages libbaton-dev, libbaton-testing and libgtest-dev, and "
      "CMake. Needs no batond.");
  auto flags = std::make_shared<Flags>();
  service->add_option("name", flags->name, "of the service and of its files")
      ->type_name("NAME")
      ->required();
  service->add_option("--directory", flags->directory, "for the files; new or empty [NAME]")
      ->type_name("DIR");
  OnChosen(service, invocation, flags, WriteService);
}

}  // namespace baton
