// <assert.h> for NVRTC, which has built in what device code may use of it.
#pragma once
