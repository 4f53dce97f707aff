/* outlook.c - see outlook.h. */
#include "plan/outlook.h"

#include "core/base/checked.h"
#include "core/base/status.h"
#include "plan/step_view.h"

static hr_status plan_by(const hr__plan_step *step, const hr__plan_machine *machine, hr__plan_means means, hr__outlook_step *out)
{
	hr__plan plan;
	hr_status status = hr__plan_make_by(step, machine, means, &plan);
	*out = (hr__outlook_step){ 0 };
	if (status == HR_OUT_OF_MEMORY) return HR_OK;
	if (status) return status;
	*out = (hr__outlook_step){ .fits = true,
		                       .step_ns = plan.step_ns,
		                       .again_ns = plan.again_ns,
		                       .bytes_out = plan.bytes_out,
		                       .bytes_in = plan.bytes_in,
		                       .again_ops = plan.turn_count ? plan.turn_count - step->op_count : 0 };
	for (uint32_t i = 0; i < plan.drop_count; i++) out->dropped += !plan.drops[i].ghost;
	hr__plan_free(&plan);
	return HR_OK;
}

static hr_status play(const hr__forecast_setup *setup, uint64_t limit, hr__outlook *out)
{
	hr__forecast forecast;
	hr__forecast_setup with_recipes = *setup;
	with_recipes.limit = limit;
	with_recipes.recompute = true;
	hr_status status = hr__forecast_make(&with_recipes, &forecast);
	out->bound_ns = forecast.bound_ns;
	out->played = (hr__outlook_step){ .fits = forecast.fits,
		                              .step_ns = forecast.step_ns,
		                              .again_ns = forecast.again_ns,
		                              .bytes_out = forecast.bytes_out,
		                              .bytes_in = forecast.bytes_in,
		                              .again_ops = (uint32_t)forecast.recomputes,
		                              .dropped = (uint32_t)forecast.drops };
	hr__forecast_free(&forecast);
	return status;
}

hr_status hr__outlook_make(const hr__forecast_setup *setup, uint64_t limit, hr__outlook *out)
{
	static const hr__plan_means means[HR__OUTLOOK_MEANS] = { HR__PLAN_MOVE, HR__PLAN_RECOMPUTE, HR__PLAN_BOTH };
	hr__step_view view;
	hr__plan_machine machine = { .memory = hr__align_down(limit, setup->page),
		                         .out_bytes_per_s = setup->link,
		                         .in_bytes_per_s = setup->link,
		                         .copy_ns = HR__FORECAST_COPY_NS };
	*out = (hr__outlook){ .limit = limit };
	hr_status status = hr__step_view_make(setup->schedule, setup->part, HR__FORECAST_GRANULARITY, &view);
	if (status) return status;
	status = hr__step_view_mark_pure(&view, setup->schedule);
	for (int i = 0; i < HR__OUTLOOK_MEANS && !status; i++) status = plan_by(&view.step, &machine, means[i], &out->by[i]);
	hr__step_view_free(&view);
	return status ? status : play(setup, limit, out);
}
