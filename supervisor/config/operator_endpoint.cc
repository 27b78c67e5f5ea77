#include "supervisor/config/operator_endpoint.h"

#include <set>

#include "absl/strings/str_cat.h"
#include "lib/base/utf8.h"

namespace baton {
namespace {

bool IsText(const std::string& text) {
  return text.find('\0') == std::string::npos && IsUtf8(text);
}

void CheckFile(const char* field, const std::string& path, std::vector<FieldProblem>* problems) {
  if (path.empty()) {
    problems->push_back({field, "is missing; name a file in PEM"});
  } else if (path.front() != '/' || !IsText(path)) {
    problems->push_back({field, "is not an absolute path in UTF-8"});
  }
}

template <typename Names>
void CheckNames(const char* field, const Names& names, std::set<std::string>* known,
                std::vector<FieldProblem>* problems) {
  for (const std::string& name : names) {
    if (name.empty() || !IsText(name)) {
      problems->push_back({field, "has a name that is empty, or is not UTF-8"});
    } else if (!known->insert(name).second) {
      problems->push_back({field, absl::StrCat("\"", name,
                                               "\" stands there already, or in the other "
                                               "of operators and viewers; name each once")});
    }
  }
}

}  // namespace

std::vector<FieldProblem> ProblemsOf(const v1::OperatorEndpoint& endpoint) {
  std::vector<FieldProblem> problems;
  CheckFile("certificate_file", endpoint.certificate_file(), &problems);
  CheckFile("key_file", endpoint.key_file(), &problems);
  CheckFile("client_ca_file", endpoint.client_ca_file(), &problems);
  if (!endpoint.crl_file().empty()) CheckFile("crl_file", endpoint.crl_file(), &problems);
  std::set<std::string> known;
  CheckNames("operators", endpoint.operators(), &known, &problems);
  CheckNames("viewers", endpoint.viewers(), &known, &problems);
  if (endpoint.operators().empty() && endpoint.viewers().empty()) {
    problems.push_back({"operators", "is missing, and so is viewers; name somebody who may call"});
  }
  return problems;
}

}  // namespace baton
