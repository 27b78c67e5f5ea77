// What libraries.h is, for the data path, which g++ compiles.
#ifndef LIB_BAZEL_TOOLCHAIN_DATA_PATH_H_
#define LIB_BAZEL_TOOLCHAIN_DATA_PATH_H_

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <thread>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"

#endif  // LIB_BAZEL_TOOLCHAIN_DATA_PATH_H_
