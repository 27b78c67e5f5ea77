#ifndef SUPERVISOR_CLI_SUGGEST_H_
#define SUPERVISOR_CLI_SUGGEST_H_

#include <string>
#include <vector>

namespace baton {

// The one of `known` that was probably meant by `typed`; empty when none is near.
std::string Nearest(const std::string& typed, const std::vector<std::string>& known);
// "; did you mean \"kv\"?", or nothing.
std::string DidYouMean(const std::string& typed, const std::vector<std::string>& known);

}  // namespace baton

#endif  // SUPERVISOR_CLI_SUGGEST_H_
