#ifndef SUPERVISOR_CONFIG_LOG_LEVEL_H_
#define SUPERVISOR_CONFIG_LOG_LEVEL_H_

#include "proto/baton/v1/config.pb.h"
#include "spdlog/common.h"

namespace baton {

inline spdlog::level::level_enum LevelOf(v1::LogLevel level) {
  return level == v1::LOG_LEVEL_DEBUG     ? spdlog::level::debug
         : level == v1::LOG_LEVEL_WARNING ? spdlog::level::warn
         : level == v1::LOG_LEVEL_ERROR   ? spdlog::level::err
                                          : spdlog::level::info;
}

}  // namespace baton

#endif  // SUPERVISOR_CONFIG_LOG_LEVEL_H_
